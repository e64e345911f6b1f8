#!/usr/bin/env bash
# In Warp the quotient of // is rounded down and the remainder of % is not: -7 // 2 * 2 + -7 % 2 is -9.
#
# Expected: x == x // y * y + x % y, as in Python and NumPy, and as in C with its own quotient. Seen with warp-lang 1.19.0 and NumPy 2.4.6 on a
# CPU: x // y rounds toward minus infinity, as in Python, and x % y has the sign of x, as in C. The sum differs from x by y if the signs differ
# and the division has a rest. Integers and floats behave so, in kernels and in operators of arrays. The source of a kernel is Python, and
# Python computes -7 from the same expression. An index that is split by // and % into row and column is put together wrongly for negative numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 warp-lang==1.19.0
cat > "$work/remainders.py" <<'PYTHON'
import sys

import numpy as np
import warp as wp

wp.config.quiet = True
wp.init()


@wp.kernel
def integers(x: wp.array(dtype=wp.int32), y: wp.array(dtype=wp.int32), result: wp.array2d(dtype=wp.int32)):
    i = wp.tid()
    result[0, i] = x[i] // y[i]
    result[1, i] = x[i] % y[i]


@wp.kernel
def floats(x: wp.array(dtype=wp.float32), y: wp.array(dtype=wp.float32), result: wp.array2d(dtype=wp.float32)):
    i = wp.tid()
    result[0, i] = x[i] // y[i]
    result[1, i] = x[i] % y[i]


x, y = np.array([7, -7, 7, -7, -6]), np.array([2, 2, -2, -2, 2])
print("x:", x.tolist(), "y:", y.tolist())
quotient, remainder = [3, -4, -4, 3, -3], [1, -1, 1, -1, 0]
changed = False
for kernel, dtype in ((integers, np.int32), (floats, np.float32)):
    a, b = (wp.array(numbers.astype(dtype), device="cpu") for numbers in (x, y))
    result = wp.zeros((2, len(x)), dtype=a.dtype, device="cpu")
    wp.launch(kernel, len(x), [a, b, result], device="cpu")
    for name, (q, r) in {"kernel": result.numpy(), "arrays": ((a // b).numpy(), (a % b).numpy())}.items():
        print(f"{np.dtype(dtype)}, {name}: x // y {q.tolist()}, x % y {r.tolist()}, x // y * y + x % y {(q * y + r).tolist()}")
        changed |= q.tolist() != quotient or r.tolist() != remainder
print(f"NumPy: x // y {(x // y).tolist()}, x % y {(x % y).tolist()}, x // y * y + x % y {(x // y * y + x % y).tolist()}")
if changed:
    sys.exit("the behaviour has changed")
print("as described: the remainder does not match the quotient")
PYTHON
HOME="$work" WARP_CACHE_PATH="$work/cache" "$work/venv/bin/python" -W ignore "$work/remainders.py"
