#!/usr/bin/env bash
# FilterPy's CubatureKalmanFilter gives a measurement the weight 0.5 where its Kalman filter has 0.92, and ends with the variance 10.5.
#
# Expected: the numbers of KalmanFilter and UnscentedKalmanFilter of the same package, because the cubature points are exact for linear
# models. Seen with filterpy 2.0.0, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: the update reads the points of the
# prediction, which were drawn before the process noise was added, so that the gain is that of the step before. In a random walk with a
# process noise of 10 and a measurement noise of 1, the variance after a measurement is above that of the measurement alone, and it stays
# at 10.9 in place of 0.92. A filter that starts with a variance of 0.01 nearly ignores its first measurement. Without process noise all
# three are equal, and drawing the points from the prediction again repairs it. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 filterpy==2.0.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from filterpy.kalman import CubatureKalmanFilter, KalmanFilter, MerweScaledSigmaPoints, UnscentedKalmanFilter
from filterpy.kalman.CubatureKalmanFilter import spherical_radial_sigmas

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("filterpy", "scipy", "numpy")))
model = {"hx": lambda x: x, "fx": lambda x, dt: x}


def run(name, process, start, again=False):
    """Return the mean and the variance of a random walk from 0 after each of five measurements of 1."""
    if name == "Kalman":
        walk = KalmanFilter(1, 1)
        walk.F = walk.H = np.eye(1)
    elif name == "unscented":
        walk = UnscentedKalmanFilter(1, 1, 1.0, points=MerweScaledSigmaPoints(1, 1.0, 2.0, 2.0), **model)
    else:
        walk = CubatureKalmanFilter(1, 1, 1.0, **model)
        walk.x = np.zeros((1, 1))
    walk.Q, walk.R, walk.P = process * np.eye(1), np.eye(1), start * np.eye(1)
    rows = []
    for _ in range(5):
        walk.predict()
        if again:
            walk.sigmas_f = spherical_radial_sigmas(walk.x, walk.P)
        walk.update(np.ones(1) if name == "unscented" else np.ones((1, 1)))
        rows.append([float(np.ravel(walk.x)[0]), float(walk.P[0, 0])])
    return np.array(rows)


changed = False
for process, start in ((0, 1), (1, 1), (1, 0.01), (10, 1)):
    seen = {name: run(name, process, start) for name in ("Kalman", "unscented", "cubature")}
    print(f"process noise {process}, variance {start} at the start:")
    for name, rows in seen.items():
        print(f"    {name}: means {rows[:, 0].round(3).tolist()}, variances {rows[:, 1].round(3).tolist()}")
    changed |= not np.allclose(seen["Kalman"], seen["unscented"])
    changed |= not np.allclose(seen["Kalman"], run("cubature", process, start, again=True))
    changed |= np.allclose(seen["Kalman"], seen["cubature"], atol=1e-3) != (process == 0)
    if process == 10:
        changed |= not np.allclose(seen["cubature"][0], [0.5, 10.5]) or not np.allclose(seen["Kalman"][0], [11 / 12, 11 / 12])
if changed:
    sys.exit("the behaviour has changed")
print("as described: the update ignores the process noise")
PYTHON
