#!/usr/bin/env bash
# spatialmath's wrap_mpi2_pi2, which wraps angles to the range from -pi/2 to pi/2, returns -5.57 for 7, 3.42 for 6 and -2.28 for 4.
#
# Expected: 0.717, -0.283 and -0.858, the latitudes that such angles reach, which is what the documentation says it is for. Seen with spatialmath-python
# 1.1.18 and NumPy 2.4.6 on Linux: the number of quarter turns is taken for that of half turns, so that results beyond a half turn are outside of the
# range, and those beyond a quarter, such as 1.14 for 2, are right. angle_wrap with the mode "-pi/2:pi/2" does the same. wrap_0_pi, for colatitudes,
# is right. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 spatialmath-python==1.1.18
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import spatialmath.base

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("spatialmath-python", "numpy")))
angles = np.array([0, 1, 2, 3, 4, 5, 6, 7, -2, -4, -7.0])
seen = spatialmath.base.wrap_mpi2_pi2(angles)
right = np.arcsin(np.sin(angles))
other = spatialmath.base.wrap_0_pi(angles)
for row in zip(angles, seen, right, other, np.arccos(np.cos(angles)), strict=True):
    print("{:g}: wrap_mpi2_pi2 {:.4f}, latitude {:.4f}; wrap_0_pi {:.4f}, colatitude {:.4f}".format(*row))
described = [0, 1, np.pi - 2, np.pi - 3, 4 - 2 * np.pi, 3 * np.pi - 5, 3 * np.pi - 6, 7 - 4 * np.pi, -np.pi + 2, -4 + 2 * np.pi, 4 * np.pi - 7]
changed = not np.allclose(seen, described) or not np.allclose(other, np.arccos(np.cos(angles)))
single = spatialmath.base.angle_wrap(7.0, "-pi/2:pi/2")
print(f"angle_wrap(7): {single:.4f}; outside of the range: {angles[np.abs(seen) > np.pi / 2].tolist()}")
if changed or not np.isclose(single, 7 - 4 * np.pi):
    sys.exit("the behaviour has changed")
print("as described: results are outside of the range")
PYTHON
