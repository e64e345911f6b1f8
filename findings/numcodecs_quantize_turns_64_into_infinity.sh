#!/usr/bin/env bash
# The codec Quantize of numcodecs turns float16 numbers from 64 on into infinity if three digits are kept, and from 4 on with four digits.
#
# Expected: numbers rounded to the digits that were asked for; float16 reaches 65504, and numbers of this size have no digits to lose. Seen with
# numcodecs 0.16.6 and NumPy 2.4.6: the codec multiplies by a power of two, 1024 for three digits, rounds and divides, all in the type of
# the data, so that the product overflows. In float32 the same happens above 2.1e37 with one digit and above 3.3e35 with three. NumPy gives a
# RuntimeWarning, but the infinity is stored. BitRound keeps the same numbers. A zarr array of half-precision features that keeps three
# digits has no numbers above 64, and its maximum is infinite.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numcodecs==0.16.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numcodecs
import numpy as np

changed = False
for digits, dtype, numbers, infinite in (
    (0, "f2", [1.5, 63, 64, 1000, 65504], []),
    (1, "f2", [1.5, 63, 64, 1000, 5000, 65504], [5000, 65504]),
    (3, "f2", [1.5, 63, 64, 1000], [64, 1000]),
    (4, "f2", [1.5, 3.5, 4, 1000], [4, 1000]),
    (1, "f4", [1.5, 1e37, 3e37], [3e37]),
    (3, "f4", [1.5, 3.25e35, 3.5e35], [3.5e35]),
):
    codec = numcodecs.Quantize(digits=digits, dtype=dtype)
    decoded = codec.decode(codec.encode(np.array(numbers, dtype)))
    lost = [number for number, value in zip(numbers, decoded) if np.isinf(value)]
    print(f"{dtype}, {digits} digits: {numbers} become {decoded.tolist()}")
    changed |= lost != infinite
rounded = numcodecs.BitRound(keepbits=8)
kept = rounded.decode(rounded.encode(np.array([64, 1000], "f2"))).view("f2").tolist()
print("BitRound: 64, 1000 become", kept)
if changed or kept != [64, 1000]:
    sys.exit("the behaviour has changed")
print("as described: numbers within the range become infinite")
PYTHON
