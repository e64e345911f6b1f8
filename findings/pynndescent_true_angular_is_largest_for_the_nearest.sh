#!/usr/bin/env bash
# With the metric true_angular, PyNNDescent returns 0.97 as the distance of vectors that are 5 degrees apart, and 0.5 for 90 degrees.
#
# Expected: distances that grow with the angle, 5/180 and 90/180, because the index returns its neighbours in this order. Seen with
# pynndescent 0.7.0, numba 0.68.1, scikit-learn 1.9.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: the index is built with another
# function of the angle, which is converted at the end to 1 minus the angle over pi. The neighbours are right, and their distances fall
# from one to the next. Only a vector and itself have the distance 0. All angles above 90 degrees are returned as 90 degrees, in any order.
# No warning is given. A threshold on the distance keeps the wrong neighbours.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 numba==0.68.1 scikit-learn==1.9.1 pynndescent==0.7.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import pynndescent

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pynndescent", "numba", "scikit-learn", "numpy")))
degrees = np.array([0, 5, 20, 60, 160, 180])
vectors = np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=1).astype(np.float32)
wanted = [0, 175 / 180, 160 / 180, 120 / 180, 0.5, 0.5]
index = pynndescent.NNDescent(vectors, metric="true_angular", n_neighbors=6, random_state=0)
neighbours, distances = (array[0] for array in index.neighbor_graph)
print(f"angles {degrees[neighbours].tolist()}, distances {distances.round(3).tolist()}")
changed = degrees[neighbours].tolist()[:4] != [0, 5, 20, 60] or not np.allclose(distances, wanted, atol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the nearest vector has the largest distance")
PYTHON
