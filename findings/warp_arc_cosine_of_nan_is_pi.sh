#!/usr/bin/env bash
# In Warp the arc cosine of NaN is pi, the unit vector of NaN is 0 and the sign of NaN is 1.
#
# Expected: NaN, as NumPy has it, and as wp.sqrt, wp.log, wp.floor and wp.erf have it. Seen with warp-lang 1.19.0 and NumPy 2.4.6 on a CPU: wp.acos
# limits its argument to -1 to 1, so that it is pi for -2.5 and 0 for 2.5, and the limit turns NaN into -1. wp.clamp of NaN is the
# lower limit, wp.smoothstep is 0, wp.min and wp.max of NaN and 0 are 0 in both orders, and wp.normalize of a vector of NaN is a vector of zeros. A simulation that has
# divided by zero goes on with finite angles and directions, and a search for NaN in its results finds nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 warp-lang==1.19.0
cat > "$work/nan.py" <<'PYTHON'
import sys

import numpy as np
import warp as wp

wp.config.quiet = True
wp.init()


@wp.kernel
def functions(x: wp.array(dtype=wp.float32), result: wp.array2d(dtype=wp.float32)):
    i = wp.tid()
    a = x[i]
    result[0, i] = wp.acos(a)
    result[1, i] = wp.asin(a)
    result[2, i] = wp.sign(a)
    result[3, i] = wp.clamp(a, -1.0, 1.0)
    result[4, i] = wp.smoothstep(-1.0, 1.0, a)
    result[5, i] = wp.min(a, 0.0)
    result[6, i] = wp.min(0.0, a)
    result[7, i] = wp.max(a, 0.0)
    result[8, i] = wp.max(0.0, a)
    result[9, i] = wp.normalize(wp.vec3(a, a, a))[0]
    result[10, i] = wp.sqrt(a)
    result[11, i] = wp.log(a)
    result[12, i] = wp.floor(a)
    result[13, i] = wp.erf(a)


x = wp.array([np.nan, -2.5, 2.5], dtype=wp.float32, device="cpu")
result = wp.zeros((14, 3), dtype=wp.float32, device="cpu")
wp.launch(functions, 3, [x, result], device="cpu")
names = ["acos", "asin", "sign", "clamp", "smoothstep", "min(x, 0)", "min(0, x)", "max(x, 0)", "max(0, x)", "normalize", "sqrt", "log", "floor", "erf"]
expected = [np.pi, -np.pi / 2, 1, -1, 0, 0, 0, 0, 0, 0, *[np.nan] * 4]
seen = result.numpy()
for name, row in zip(names, seen, strict=True):
    print(f"{name}: NaN {row[0]}, -2.5 {row[1]}, 2.5 {row[2]}")
if not np.allclose(seen[:, 0], expected, equal_nan=True) or not np.allclose(seen[0, 1:], [np.pi, 0]):
    sys.exit("the behaviour has changed")
print("as described: the arc cosine of NaN is pi")
PYTHON
HOME="$work" WARP_CACHE_PATH="$work/cache" "$work/venv/bin/python" -W ignore "$work/nan.py"
