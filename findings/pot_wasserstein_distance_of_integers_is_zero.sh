#!/usr/bin/env bash
# The Wasserstein distance of POT is 0 for any two sets of integers: 10, 20, 30, 40 and 60, 70, 80, 90 have the distance 0 in place of 50.
#
# Expected: 50, as for the same points as floats, or an error for integers. Seen with POT 0.9.7.post1, NumPy 2.4.6 and SciPy 1.17.1 on Linux, for
# int64 as for all other integers: wasserstein_1d creates the equal weights 1/4 in the type of the points, where they are 0, and
# sliced_wasserstein_distance and max_sliced_wasserstein_distance use it. emd_1d computes the plan as floats and converts it to the type of
# the points, so all its numbers are 0, although emd2_1d has the right cost for it. A set of pixels, counts or ranks is found equal to every
# other one. With bytes, the cosine distances of ot.dist are in float16 from products that wrap around, and -4.5 is one of them. No warning is
# given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pot==0.9.7.post1
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import numpy as np
import ot

print(f"POT {ot.__version__}, NumPy {np.__version__}")
first, second = [10, 20, 30, 40], [60, 70, 80, 90]
changed = False
for dtype in (np.float64, np.int64, np.int32, np.int16, np.uint8):
    x, y = np.array(first, dtype), np.array(second, dtype)
    points = np.stack([x, x], 1), np.stack([y, y], 1)
    seen = [
        float(ot.wasserstein_1d(x, y)),
        float(ot.wasserstein_1d(x, y, p=2)),
        float(ot.sliced_wasserstein_distance(*points, seed=0)),
        float(ot.max_sliced_wasserstein_distance(*points, seed=0)),
        float(ot.emd_1d(x, y).sum()),
    ]
    cost = float(ot.emd2_1d(x, y, metric="euclidean"))
    distances = ", ".join(f"{distance:.4}" for distance in seen[:4])
    print(f"{np.dtype(dtype)}: distances {distances}; sum of the plan {seen[4]}, cost by emd2_1d {cost}")
    if dtype is np.float64:
        changed |= not np.allclose(seen, [50, 2500, 46.858935, 70.700653, 1], atol=1e-4)
    else:
        changed |= seen != [0] * 5
    changed |= not np.isclose(cost, 50)
bytes_ = np.array([[216, 162, 70]], np.uint8), np.array([[10, 240, 90]], np.uint8)
cosines = [float(ot.dist(*(points.astype(dtype) for points in bytes_), metric="cosine")[0, 0]) for dtype in (np.uint8, np.float64)]
print(f"cosine distance of bytes: {cosines[0]:.4}, of the same numbers as floats: {cosines[1]:.4}")
changed |= not abs(cosines[0] - cosines[1]) > 0.1
if changed:
    sys.exit("the behaviour has changed")
print("as described: equal weights and plans of integers are 0")
PYTHON
