#!/usr/bin/env bash
# Yaw, pitch and roll of PyQuaternion are those of the order x, y, z, and not of z, y, x.
#
# Expected: the angles of aviation, intrinsic z-y'-x'', as the docstring of yaw_pitch_roll has it, in which the
# yaw of a vehicle is the direction in which its nose points. Seen with PyQuaternion 0.9.9, SciPy 1.17.1 and
# NumPy 2.4.6 on Linux: the angles are those of intrinsic x-y'-z'', for which the rotation matrix is
# R_x(roll) R_y(pitch) R_z(yaw); the docstring has this product, too, and contradicts itself. A turn about one
# axis is right. A vehicle with the yaw 90 and the pitch 30 degrees gets the pitch 0 and the roll -30 degrees,
# and one with the yaw 120, the pitch 40 and the roll 10 gets 113, -10 and -40. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 pyquaternion==0.9.9
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pyquaternion import Quaternion
from scipy.spatial.transform import Rotation

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyquaternion", "scipy", "numpy")))
changed = False
for angles in ([50, 0, 0], [0, 40, 0], [0, 0, 30], [90, 30, 0], [120, 40, 10], [-20, 15, 70]):
    yaw, pitch, roll = (Quaternion(axis=axis, degrees=angle) for axis, angle in zip(np.eye(3)[::-1], angles))
    own = yaw * pitch * roll
    right = Rotation.from_euler("ZYX", angles, degrees=True)
    seen = np.degrees(own.yaw_pitch_roll)
    nose = own.rotate([1.0, 0.0, 0.0])
    heading = np.degrees(np.arctan2(nose[1], nose[0]))
    shown = (seen.round(2) + 0).tolist()
    print(f"yaw, pitch and roll {angles}: yaw_pitch_roll {shown}, direction of the nose {heading:.2f}")
    changed |= not np.allclose(own.rotation_matrix, right.as_matrix()) or not np.isclose(heading, angles[0])
    changed |= not np.allclose(right.as_euler("ZYX", degrees=True), angles)
    changed |= not np.allclose(seen, right.as_euler("XYZ", degrees=True)[::-1])
    changed |= np.allclose(seen, angles) != (np.count_nonzero(angles) == 1)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the order is x, y, z")
PYTHON
