#!/usr/bin/env bash
# ExecuTorch computes -7 % 3 of integer tensors as -1, where PyTorch has 2 for the same model.
#
# Expected: the remainder with the sign of the divisor, as torch.remainder documents and as ExecuTorch itself has it for floats and in its
# division with rounding_mode="floor". Seen with executorch 1.5.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, for int8, int32 and
# int64, with a number or a tensor as divisor: the result is that of torch.fmod, and x == x // 3 * 3 + x % 3 is false. No
# error is raised. A ring buffer or a periodic position that is computed by % has a negative index in front of the first element.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check executorch==1.5.1
cat > "$work/remainder.py" <<'PYTHON'
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


def remainder(x):
    return x % 3


def negative_divisor(x):
    return torch.remainder(x, -3)


def by_tensor(x, divisor):
    return torch.remainder(x, divisor)


def identity(x):
    return torch.div(x, 3, rounding_mode="floor") * 3 + x % 3


values = [-7, -1, 0, 5]
cases = [
    ("x % 3, int64", remainder, [torch.tensor(values)], [-1, -1, 0, 2]),
    ("x % 3, int32", remainder, [torch.tensor(values, dtype=torch.int32)], [-1, -1, 0, 2]),
    ("x % 3, int8", remainder, [torch.tensor(values, dtype=torch.int8)], [-1, -1, 0, 2]),
    ("x % 3, float32", remainder, [torch.tensor(values, dtype=torch.float32)], [2, 2, 0, 2]),
    ("x % -3, int64", negative_divisor, [torch.tensor([7, 1, 0, -5])], [1, 1, 0, -2]),
    ("x % y, int64", by_tensor, [torch.tensor(values), torch.tensor([3, 5, 3, 3])], [-1, -1, 0, 2]),
    ("x // 3 * 3 + x % 3, int64", identity, [torch.tensor(values)], [-10, -4, 0, 5]),
]
changed = False
for name, function, operands, expected in cases:
    correct, seen = both(function, *operands)
    print(f"{name} of {operands[0].tolist()}: PyTorch {correct.tolist()}, ExecuTorch {seen.tolist()}")
    changed |= seen.tolist() != expected or torch.equal(seen, correct) != ("float32" in name)
if changed:
    sys.exit("the behaviour has changed")
print("as described: -7 % 3 is -1")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/remainder.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
