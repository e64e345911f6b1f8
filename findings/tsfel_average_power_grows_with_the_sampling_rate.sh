#!/usr/bin/env bash
# The average power of one signal is 300 with TSFEL if it was sampled at 100 Hz, and 3,000 at 1 kHz; the mean of its squares is 3.
#
# Expected: the mean of the squares, the energy over the duration, which sampling does not change, as calc_std and rms of the same library do not.
# Seen with tsfel 0.2.0, NumPy 2.3.5 and SciPy 1.17.1 (x86-64 Linux) on 2026-12-01: average_power divides the sum of the squares, in which each sample
# counts as a second, by the seconds between the first and the last sample. Classifiers that learn from it separate devices by their clocks, and
# data that were resampled do not match.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check tsfel==0.2.0 numpy==2.3.5 scipy==1.17.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from tsfel.feature_extraction import features

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tsfel", "numpy", "scipy")))
same = True
for rate in (10, 100, 1000):
    t = np.arange(10 * rate) / rate
    x = 1 + 2 * np.sin(2 * np.pi * t)
    seen, mean, rms = features.average_power(x, rate), (x**2).mean(), features.rms(x)
    print(f"{rate} Hz: average power {seen:.1f}, mean of squares {mean:.3f}, square of rms {rms**2:.3f}")
    same &= bool(np.isclose(seen, 3 * rate, rtol=0.02) and np.isclose(mean, 3) and np.isclose(rms**2, 3))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the power is proportional to the sampling rate")
PYTHON
