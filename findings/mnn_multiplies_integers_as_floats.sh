#!/usr/bin/env bash
# MNN multiplies int32 numbers in float32, and its mod and floormod exchange their meanings for integers.
#
# Expected: integer products are exact or wrap around, as MNN's own pow; mod keeps the sign of the dividend and floormod that of the divisor
# for integers as for floats, or the reverse for both. Seen with mnn 3.6.1 and NumPy 2.4.6 on a CPU (x86-64 Linux): 12345 times 12345 is
# even, and 16777217 times 1 is 16777216, with the type int. mod(-5, 3) is 1 for integers and -2 for floats; floormod is -2 and 1.
# MNN.numpy.fmod(-5, 3) is 1 too. Offsets into an array computed as row * width + column are such products.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 mnn==3.6.1
"$work/venv/bin/python" - <<'PYTHON'
import sys

import MNN.expr as expr
import MNN.numpy as mnp
import numpy as np


def integer(value):
    return expr.const(np.array([value], np.int32), [1], expr.NCHW, expr.int)


def floating(value):
    return expr.const(np.array([value], np.float32), [1], expr.NCHW, expr.float)


results = {
    "12345 * 12345": integer(12345) * integer(12345),
    "pow(12345, 2)": expr.pow(integer(12345), integer(2)),
    "16777217 * 1": integer(16777217) * integer(1),
    "16777217 + 0": integer(16777217) + integer(0),
    "mod(-5, 3)": expr.mod(integer(-5), integer(3)),
    "floormod(-5, 3)": expr.floormod(integer(-5), integer(3)),
    "MNN.numpy.fmod(-5, 3)": mnp.fmod(mnp.array([-5]), mnp.array([3])),
    "mod(-5.0, 3.0)": expr.mod(floating(-5), floating(3)),
    "floormod(-5.0, 3.0)": expr.floormod(floating(-5), floating(3)),
}
seen = {name: result.read().tolist()[0] for name, result in results.items()}
for name, value in seen.items():
    print(f"{name} = {value} ({str(results[name].dtype)})")
if list(seen.values()) != [152399024, 152399025, 16777216, 16777217, 1, -2, 1, -2.0, 1.0]:
    sys.exit("the behaviour has changed")
print("as described: a product of odd numbers is even")
PYTHON
