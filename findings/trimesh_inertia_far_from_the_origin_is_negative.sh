#!/usr/bin/env bash
# trimesh's principal moments of inertia of a box of 1 x 2 x 3 at the coordinates (500000, 500000, 100) are -29.6, 0 and 38.6 in place of 2.5, 5 and 6.5.
#
# Expected: 6.5, 5 and 2.5 everywhere: the documentation says that they are taken at the centre of mass. Seen with trimesh 5.2.0, SciPy 1.17.1 and NumPy 2.4.6 on
# Linux: the integrals are computed about the origin and shifted, and all digits cancel. Negative moments do not exist.
# Volume and centre of mass of the same mesh are right, which hides it. At 100000 the moments are wrong by up to 28 percent. UTM coordinates and scans of
# buildings have such offsets, and meshes in millimetres too. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 trimesh==5.2.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import numpy as np
import scipy
import trimesh

print(f"trimesh {trimesh.__version__}, SciPy {scipy.__version__}, NumPy {np.__version__}")
right = np.array([(2**2 + 3**2) / 2, (1 + 3**2) / 2, (1 + 2**2) / 2])
errors = {}
for offset in (0, 1e4, 1e5, 5e5, 5e6):
    box = trimesh.creation.box(extents=(1, 2, 3))
    box.apply_translation((offset, offset, 100))
    moments, principal = box.moment_inertia.diagonal(), box.principal_inertia_components
    centred = box.copy()
    centred.apply_translation(-box.center_mass)
    errors[offset] = float(np.abs(moments / right - 1).max())
    moved = centred.moment_inertia.diagonal()
    print(f"offset {offset:g}: moments {moments.round(4).tolist()}, principal {principal.round(4).tolist()}, volume {box.volume:.6f}", end=", ")
    print(f"centre {(box.center_mass - (offset, offset, 100)).round(6).tolist()}; moved to the origin first: {moved.round(6).tolist()}")
    same = np.allclose(moved, right, rtol=1e-6) and abs(box.volume - 6) < 1e-6 and np.allclose(box.center_mass, (offset, offset, 100))
    if not same or (offset >= 5e5 and principal[0] > -1):
        sys.exit("the behaviour has changed")
if errors[0] > 1e-9 or errors[1e4] > 0.01 or errors[1e5] < 0.1 or errors[5e5] < 0.5 or errors[5e6] < 100:
    sys.exit("the behaviour has changed")
print("as described: the moments are lost in cancellation")
PYTHON
