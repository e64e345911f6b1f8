#!/usr/bin/env bash
# Halide's exp of infinity is 0 in float32, as are those of 1e10 and of NaN, and the logistic function of -infinity is 1; log of infinity is 88.7.
#
# Expected: infinity, NaN, 0 and infinity, because the documentation says that exp does the right thing for extremely large inputs and is accurate up to
# the last bit. Seen with halide 21.0.0 and NumPy 2.4.6 (x86-64 Linux, just-in-time compiler) on 2026-11-30: from 88.8 to 1e9, exp is infinite, and for 1e10 the
# exponent leaves the range of int32, so that the result is 0. 2 to the power of infinity is 0 too, and the log of the subnormal number 1e-45 is -88.03
# in place of -103.28. float64 calls the system's functions and is right. A comparison of NaN with itself is true, and strict_float does not change
# exp. A sigmoid of a mask of -infinity, which should hide an element, lets it pass.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 halide==21.0.0
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import halide as hl
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("halide", "numpy")))
x = hl.Var("x")


def evaluate(make, values, kind=np.float32):
    """Return an expression of each number, computed by Halide."""
    buffer, function = hl.Buffer(np.array(values, kind)), hl.Func()
    function[x] = make(buffer[x])
    return np.array(function.realize([len(values)])).tolist()


inf, nan = float("inf"), float("nan")
large = [88.8, 1000.0, 1e9, 1e10, 1e20, inf, nan]
cases = [
    ("exp in float32", evaluate(hl.exp, large), [inf, inf, inf, 0, 0, 0, 0]),
    ("exp in float32 with strict_float", evaluate(lambda value: hl.strict_float(hl.exp(value)), large), [inf, inf, inf, 0, 0, 0, 0]),
    ("exp in float64", evaluate(hl.exp, large, np.float64), [np.exp(88.8), inf, inf, inf, inf, inf, nan]),
    ("1 / (1 + exp(-x)) of -1000, -1e10 and -inf", evaluate(lambda value: 1 / (1 + hl.exp(-value)), [-1000.0, -1e10, -inf]), [0, 1, 1]),
    ("2 ** x of 1 and inf", evaluate(lambda value: hl.pow(hl.f32(2), value), [1.0, inf]), [2, 0]),
    ("log of 1, inf and 1e-45", evaluate(hl.log, [1.0, inf, 1e-45]), [0, 88.7228394, -88.0296936]),
    ("NaN == NaN and NaN != NaN", evaluate(lambda value: hl.cast(hl.UInt(8), value == value), [nan]) + evaluate(lambda value: hl.cast(hl.UInt(8), value != value), [nan]), [1, 0]),
]
same = True
for name, seen, expected in cases:
    print(f"{name}: {seen}")
    same &= np.allclose(seen, expected, rtol=1e-4, equal_nan=True)
if not same:
    sys.exit("the behaviour has changed")
print("as described: the exponential of infinity is 0 in float32")
PYTHON
