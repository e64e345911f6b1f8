#!/usr/bin/env bash
# In PyTorch, each byte is less than -1, and the byte 200 equals -56 and is greater than 300; clamp(min=-50) turns each byte into 206.
#
# Expected: the comparisons of integers, as NumPy 2.4.6 gives for uint8 arrays with the same Python numbers, and bytes that a clamp at -50
# leaves as they are. Seen with torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: PyTorch converts the Python integer to the
# type of the tensor, where it wraps around. int8 is affected too: -56 equals 200. maximum with a tensor -5 of no dimension returns 251,
# and x // -7 is 0 for all bytes. A float, such as -1.0, is compared rightly. No warning is given. A mask such as labels == -100, for a
# loss that ignores elements, selects the class 156 of uint8 labels.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
cat > "$work/compare.py" <<'PYTHON'
import sys

import numpy as np
import torch

print("torch", torch.__version__, "NumPy", np.__version__)
numbers = np.array([3, 200, 0, 156], np.uint8)
x = torch.from_numpy(numbers)
small = torch.tensor([-56, 3], dtype=torch.int8)
results = {
    "x < -1": (x < -1, [True] * 4, numbers < -1),
    "x > 300": (x > 300, [False, True, False, True], numbers > 300),
    "x == -56": (x == -56, [False, True, False, False], numbers == -56),
    "x == -100": (x == -100, [False, False, False, True], numbers == -100),
    "x < -1.0": (x < -1.0, [False] * 4, numbers < -1.0),
    "int8 == 200": (small == 200, [True, False], small.numpy() == 200),
    "x.clamp(min=-50)": (x.clamp(min=-50), [206] * 4, np.maximum(numbers.astype(int), -50)),
    "maximum(x, -5)": (torch.maximum(x, torch.tensor(-5)), [251] * 4, np.maximum(numbers.astype(int), -5)),
    "x // -7": (x // -7, [0] * 4, numbers.astype(int) // -7),
}
print(f"x {numbers.tolist()}, int8 {small.tolist()}")
changed = False
for name, (result, expected, integers) in results.items():
    print(f"{name}: {result.tolist()}, of integers {integers.tolist()}")
    changed |= result.tolist() != expected
    changed |= (name == "x < -1.0") != (result.tolist() == integers.tolist())
if changed:
    sys.exit("the behaviour has changed")
print("as described: Python numbers wrap around before a comparison")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/compare.py"
