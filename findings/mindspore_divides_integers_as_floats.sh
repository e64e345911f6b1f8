#!/usr/bin/env bash
# MindSpore's fmod(123456789, 10) is -1, and (2**53 + 1) % 10 is 2, because it divides integers in floating point.
#
# Expected: 9 and 3; the results have the types int32 and int64, and products and cumsum of the same tensors are exact. Seen with mindspore 2.10.0
# and NumPy 1.26.4 (CPU, x86-64 Linux) on 2026-11-28: div with rounding_mode="trunc" divides int32 and int64 numbers in float32, so that
# 123456789 / 10 is 12345679; fmod multiplies and subtracts this quotient. floor_divide, the operators // and %, sum and pow compute int64 in double
# precision: the remainder of a time stamp in nanoseconds by 10 is 149, and 3**39 has wrong last digits. No warning is given. A
# program that splits an index into a row and a column by div and fmod gets a negative column.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==1.26.4 mindspore==2.10.0
cat > "$work/divide.py" <<'PYTHON'
import sys

import mindspore
import numpy as np
from mindspore import Tensor, ops

mindspore.set_device("CPU")


def tensor(numbers, dtype=np.int64):
    return Tensor(np.array(numbers, dtype))


small, ten32 = tensor([123456789], np.int32), tensor([10], np.int32)
large, ten = tensor([2**53 + 1]), tensor([10])
time = tensor([1764362268123456789])
rows = [
    ("int32 fmod(123456789, 10)", ops.fmod(small, ten32), 9, -1),
    ("int32 div(123456789, 10, trunc)", ops.div(small, ten32, rounding_mode="trunc"), 12345678, 12345679),
    ("int32 div(123456789, 10, floor)", ops.div(small, ten32, rounding_mode="floor"), 12345678, 12345678),
    ("int32 123456789 % 10", small % ten32, 9, 9),
    ("int64 fmod(123456789, 10)", ops.fmod(tensor([123456789]), ten), 9, -1),
    ("int64 (2**53 + 1) % 10", large % ten, 3, 2),
    ("int64 (2**53 + 1) // 1", large // tensor([1]), 2**53 + 1, 2**53),
    ("int64 remainder(1764362268123456789, 10)", ops.remainder(time, ten), 9, 149),
    ("int64 sum of 2**53, 1", ops.sum(tensor([2**53, 1])), 2**53 + 1, 2**53),
    ("int64 cumsum of 2**53, 1, last element", ops.cumsum(tensor([2**53, 1]), 0)[1], 2**53 + 1, 2**53 + 1),
    ("int64 3 ** 39", ops.pow(tensor([3]), tensor([39])), 3**39, 4052555153018976256),
    ("int64 (3**20) * (3**19)", tensor([3**20]) * tensor([3**19]), 3**39, 3**39),
]
print("mindspore", mindspore.__version__, "NumPy", np.__version__)
changed = False
for name, result, exact, known in rows:
    array = result.asnumpy()
    print(f"{name}: {array.item()}, exact {exact}")
    changed |= array.item() != known or name.split()[0] != str(array.dtype)
if changed:
    sys.exit("the behaviour has changed")
print("as described: quotients, remainders, sums and powers of integers are rounded to floats")
PYTHON
GLOG_v=3 "$work/venv/bin/python" "$work/divide.py"
