#!/usr/bin/env bash
# The CRPS of scoringrules for an ensemble of bytes is 97.8 in place of 33.3, or 0: differences are computed in uint8.
#
# Expected: the score of the same numbers in float64, because forecast and observation are numbers of any type ("array_like"). Seen with scoringrules
# 0.10.0, numba 0.68.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: with the NumPy backend, five of seven estimators subtract in uint8, where 100 - 150 is
# 206. With the Numba backend, the default if Numba is installed, "pwm", "akr" and "akr_circperm" return the type uint8 and the value 0, and "int"
# drops the fraction. The default estimator, "qd", is right. The NumPy backend gives no warning. Ensembles of images, of cloud cover in percent and of counts
# are stored as bytes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1 scoringrules==0.10.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scoringrules

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("scoringrules", "numba", "numpy")))
ensemble, observed = np.array([[200, 100, 250, 255]], np.uint8), np.array([150], np.uint8)
described = {
    ("numpy", "qd"): (44.0625, 44.0625),
    ("numpy", "int"): (44.0625, 44.0625),
    ("numpy", "nrg"): (92.75, 44.0625),
    ("numpy", "fair"): (76.75, 33.333333),
    ("numpy", "pwm"): (97.833333, 33.333333),
    ("numba", "qd"): (44.0625, 44.0625),
    ("numba", "nrg"): (44.0625, 44.0625),
    ("numba", "fair"): (33.333333, 33.333333),
    ("numba", "int"): (44, 44.0625),
    ("numba", "pwm"): (0, 33.333333),
}
same = True
for (backend, estimator), expected in described.items():
    seen = [
        scoringrules.crps_ensemble(observed.astype(kind), ensemble.astype(kind), estimator=estimator, backend=backend) for kind in (np.uint8, np.float64)
    ]
    print(f"{backend}, {estimator}: uint8 {float(seen[0][0]):.4f} ({seen[0].dtype}), float64 {float(seen[1][0]):.4f}")
    same &= np.allclose([float(score[0]) for score in seen], expected, rtol=1e-5)
plain, floats = (scoringrules.crps_ensemble(observed.astype(kind), ensemble.astype(kind)) for kind in (np.uint8, np.float64))
print(f"default backend and estimator: uint8 {float(plain[0]):.4f}, float64 {float(floats[0]):.4f}")
if not same:
    sys.exit("the behaviour has changed")
print("as described: the score of bytes wraps around or is truncated")
PYTHON
