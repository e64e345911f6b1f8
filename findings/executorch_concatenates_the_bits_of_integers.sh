#!/usr/bin/env bash
# ExecuTorch concatenates float32 and int32 tensors by their bits: the integer 3 behind floats becomes 4.2e-45.
#
# Expected: 3.0, as in PyTorch for the same model, and as ExecuTorch returns for int64, int16, int8, uint8, bool and float16. Seen with executorch
# 1.5.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, for torch.cat and torch.stack: the export accepts the model, the result
# is float32, and the integers are copied without a conversion. The type of the same width is affected, so a test with int64 does not
# show it. An int32 tensor in front of the floats is rejected by the export. A count or a position next to features is zero in effect.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check executorch==1.5.1
cat > "$work/concatenation.py" <<'PYTHON'
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


def concatenated(x, y):
    return torch.cat([x, y])


def stacked(x, y):
    return torch.stack([x, y])


floats = torch.tensor([0.5, 1.5, -2.0])
integers = [1, 0, 3]
changed = False
types = [torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.float16, torch.bfloat16]
for function in (concatenated, stacked):
    for dtype in types:
        correct, seen = both(function, floats, torch.tensor(integers).to(dtype))
        correct, seen = correct.flatten(), seen.flatten()
        print(f"{function.__name__}, float32 and {dtype}: PyTorch {correct.tolist()}, ExecuTorch {seen.tolist()} ({seen.dtype})")
        bits = seen[3:].view(torch.int32).tolist()
        changed |= (bits == integers) != (dtype is torch.int32)
        changed |= torch.equal(seen, correct) != (dtype is not torch.int32) or seen.dtype != torch.float32
if changed:
    sys.exit("the behaviour has changed")
print("as described: the bits of int32 numbers are read as floats")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/concatenation.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
