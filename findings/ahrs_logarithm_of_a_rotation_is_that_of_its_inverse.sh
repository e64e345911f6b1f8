#!/usr/bin/env bash
# The exponential of the logarithm of a rotation matrix of AHRS is the transposed matrix: the logarithm has the wrong sign.
#
# Expected: the matrix, because the documentation calls log the inverse of the exponential map. Seen with AHRS 0.4.0, SciPy 1.17.1 and NumPy 2.4.6 on
# Linux: the formula in the documentation has the matrix and its transpose in the other order than Rodrigues' formula, which it names, and the code
# follows the formula. to_axisangle of the same class returns the right axis and angle, and log of its Quaternion the right sign. An angular
# rate that is computed from the logarithm of the rotation between two samples turns the other way. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 AHRS==0.4.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.linalg
from ahrs import DCM, Quaternion
from scipy.spatial.transform import Rotation

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("AHRS", "scipy", "numpy")))
changed = False
for vector in ([0, 0, 0.5], [0.1, 0.2, 0.3], [-1.0, 2.0, 0.5]):
    rotation = Rotation.from_rotvec(vector)
    matrix = rotation.as_matrix()
    own = DCM(matrix)
    axis, angle = own.to_axisangle()
    logarithm = Quaternion(rotation.as_quat(scalar_first=True)).log[1:]
    seen = [float(own.log[i, j]) for i, j in ((2, 1), (0, 2), (1, 0))]
    right = scipy.linalg.logm(matrix).real
    print(f"rotation vector {vector}: from log {np.round(seen, 6).tolist()}, from to_axisangle {np.round(axis * angle, 6).tolist()}")
    print(f"    2 * Quaternion.log {np.round(2 * logarithm, 6).tolist()}; exponential of log minus transposed matrix", end=" ")
    print(f"{np.abs(scipy.linalg.expm(own.log) - matrix.T).max():.1e}, log plus SciPy's {np.abs(own.log + right).max():.1e}")
    changed |= not np.allclose(seen, np.negative(vector)) or not np.allclose(axis * angle, vector) or not np.allclose(2 * logarithm, vector)
    changed |= not np.allclose(scipy.linalg.expm(own.log), matrix.T) or not np.allclose(own.log, -right)
step = Rotation.from_rotvec([0, 0, 0.01]).as_matrix()
before = Rotation.from_rotvec([0.3, -0.2, 0.1]).as_matrix()
rate = DCM(before.T @ before @ step).log[1, 0] / 0.01
print(f"rate of a turn by 0.01 in 0.01 seconds: {rate:.6f}")
changed |= abs(rate + 1) > 1e-6
if changed:
    sys.exit("the behaviour has changed")
print("as described: the logarithm is that of the inverse")
PYTHON
