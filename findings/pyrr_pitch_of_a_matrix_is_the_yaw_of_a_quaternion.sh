#!/usr/bin/env bash
# Pyrr's matrix of a pitch turns about z, and its quaternion of the same pitch about y.
#
# Expected: one rotation, because Matrix33, Matrix44 and Quaternion have a from_eulers for angles of one
# module, euler, and a matrix and a quaternion are otherwise converted into each other rightly. Seen with Pyrr
# 0.10.3, SciPy 1.17.1 and NumPy 2.4.6 on Linux: the yaw turns the matrix about y and the quaternion about z;
# the roll turns both about x. A model that is placed by a matrix and turned by a quaternion looks elsewhere.
# The documentation does not name the axes. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 pyrr==0.10.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pyrr import Matrix33, Matrix44, Quaternion, euler
from scipy.spatial.transform import Rotation

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyrr", "scipy", "numpy")))
x, y, z = np.eye(3)
changed = False
for name, of_quaternion, of_matrix in (("roll", x, x), ("pitch", y, z), ("yaw", z, y)):
    angles = euler.create(**{name: 0.2})
    quaternion = Quaternion.from_eulers(angles)
    vectors = {"Quaternion": Rotation.from_quat(np.array(quaternion)).as_rotvec()}
    for kind in (Matrix33, Matrix44):
        matrix = kind.from_eulers(angles)
        vectors[kind.__name__] = Rotation.from_quat(np.array(Quaternion.from_matrix(matrix))).as_rotvec()
        back = kind.from_quaternion(Quaternion.from_matrix(matrix))
        again = Quaternion.from_matrix(kind.from_quaternion(quaternion))
        changed |= not np.allclose(np.array(back), np.array(matrix))
        changed |= not np.allclose(np.array(again), np.array(quaternion))
    shown = ", ".join(f"{kind} {np.round(vector, 6).tolist()}" for kind, vector in vectors.items())
    print(f"rotation vector of the {name} 0.2: {shown}")
    changed |= not np.allclose(vectors["Quaternion"], 0.2 * of_quaternion)
    changed |= not np.allclose([vectors["Matrix33"], vectors["Matrix44"]], 0.2 * of_matrix)
if changed:
    sys.exit("the behaviour has changed")
print("as described: pitch and yaw are exchanged")
PYTHON
