#!/usr/bin/env bash
# ExecuTorch's nonzero returns the rows (0, 0), (1, 1), (1, 1) where PyTorch has (0, 1), (1, 0), (1, 1) for the same model.
#
# Expected: one row of coordinates for each nonzero element, in the order of the elements. Seen with executorch 1.5.1, torch 2.14.1 and NumPy 2.4.6
# (CPU, x86-64 Linux) on 2026-11-29, for torch.nonzero and torch.argwhere with two or more dimensions: the numbers are written row by row, and
# the strides of the result, (1, 3), are those of columns, which PyTorch's result has too. The number of rows and the sum over all coordinates
# are right, and a vector is right. No error is raised. The boxes or points that a model finds on a map are at other places.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check executorch==1.5.1
cat > "$work/nonzero.py" <<'PYTHON'
import importlib.metadata
import logging
import sys

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

logging.disable(logging.CRITICAL)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("executorch", "torch")))


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *operands):
        return self.function(*operands)


def both(function, *operands):
    """Return the results of PyTorch and of ExecuTorch."""
    exported = torch.export.export(Model(function), operands)
    program = to_edge_transform_and_lower(exported).to_executorch()
    return function(*operands), _load_for_executorch_from_buffer(program.buffer).forward(list(operands))[0]


def places(x):
    return torch.nonzero(x)


def places_above(x):
    return torch.argwhere(x > 0.5)


cases = [
    ("matrix", places, torch.tensor([[0, 1, 0], [1, 1, 0]]), [[0, 0], [1, 1], [1, 1]]),
    ("vector", places, torch.tensor([0, 1, 1, 0, 1]), [[1], [2], [4]]),
    ("cube", places, torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]]]), [[0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 1]]),
    ("heat map", places_above, torch.tensor([[0.1, 0.2, 0.9], [0.1, 0.2, 0.3], [0.8, 0.1, 0.1]]), [[0, 2], [2, 0]]),
    ("larger heat map", places_above, torch.eye(4).roll(1, 0), [[0, 2], [3, 1], [1, 3], [0, 2]]),
]
changed = False
for name, function, x, expected in cases:
    correct, seen = both(function, x)
    print(f"{name}: PyTorch {correct.tolist()}, ExecuTorch {seen.tolist()}")
    changed |= seen.tolist() != expected or seen.shape != correct.shape or int(seen.sum()) != int(correct.sum())
if changed:
    sys.exit("the behaviour has changed")
print("as described: rows have coordinates of different elements")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/nonzero.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
