#!/usr/bin/env bash
# The Manhattan distance of two short series of bytes is 3.7e19 with aeon in place of 445, while their Euclidean distance is right.
#
# Expected: the distance of the same numbers in float64, as from euclidean_distance, dtw_distance and six others of the library. Seen with aeon 1.6.0,
# numba 0.63.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: manhattan_distance, minkowski_distance, msm_distance and ddtw_distance subtract in unsigned
# integers, to which Numba widens bytes to 64 bits, and a negative difference becomes one near 2**64, without a warning. Nearest neighbours by these
# distances are those whose values are never below the query's. Sensors and images have series of bytes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check aeon==1.6.0 numba==0.63.1 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from aeon import distances

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("aeon", "numba", "numpy")))
a, b = np.array([10, 20, 250, 30], np.uint8), np.array([30, 10, 5, 200], np.uint8)
described = {
    "manhattan_distance": (3.68934881e19, 445),
    "minkowski_distance": (2.60876357e19, 299.040131),
    "msm_distance": (1.84467441e19, 257),
    "ddtw_distance": (2.76479423e38, 11857.8125),
    "euclidean_distance": (299.040131, 299.040131),
    "squared_distance": (89425, 89425),
    "dtw_distance": (32025, 32025),
    "erp_distance": (115, 115),
}
same = True
for name, expected in described.items():
    distance = getattr(distances, name)
    seen = distance(a, b), distance(a.astype(float), b.astype(float))
    print(f"{name}: uint8 {seen[0]:.9g}, float64 {seen[1]:.9g}")
    same &= np.allclose(seen, expected, rtol=1e-6)
if not same:
    sys.exit("the behaviour has changed")
print("as described: four of eight distances of bytes wrap around")
PYTHON
