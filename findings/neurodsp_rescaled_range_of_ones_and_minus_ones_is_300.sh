#!/usr/bin/env bash
# The rescaled range of windows of 4 samples, 101, 99, 101, 99 or -99, -101, -99, -101, is 300 with neurodsp; by the definition it is 1.
#
# Expected: the range of the sums of deviations from the mean of the window, over the deviation of the window, as Hurst's method and the article that the
# description refers to have it. Seen with neurodsp 2.3.0, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the mean of the whole signal is taken
# off, not that of each window, so that the range grows with the distance between both means. A drift of three deviations to either side makes the
# range of 64 samples of noise eight times as large, and the exponent of Hurst that is fitted to it follows.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check neurodsp==2.3.0 scipy==1.17.1 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from neurodsp.aperiodic import compute_rescaled_range


def by_definition(signal, length):
    windows = signal.reshape(-1, length)
    sums = np.cumsum(windows - windows.mean(1, keepdims=True), axis=1)
    return np.mean((sums.max(1) - sums.min(1)) / windows.std(1))


print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("neurodsp", "scipy", "numpy")))
signal = np.concatenate([np.tile([101.0, 99], 8), np.tile([-99.0, -101], 8)])
same = True
for length, expected in ((4, 300), (8, 700), (16, 1500)):
    seen, right = float(compute_rescaled_range(signal, length)), by_definition(signal, length)
    print(f"windows of {length}: {seen:g}, by the definition {right:g}")
    same &= bool(np.isclose(seen, expected) and np.isclose(right, 1))
noise = np.random.default_rng(0).standard_normal(4096)
drift = noise + np.linspace(-3, 3, 4096)
ranges = [function(x, 64) for x in (noise, drift) for function in (compute_rescaled_range, by_definition)]
print("64 samples of noise: {:.2f}, by the definition {:.2f}; with a drift: {:.2f}, by the definition {:.2f}".format(*map(float, ranges)))
same &= ranges[2] > 7 * ranges[0] and ranges[3] < 1.1 * ranges[1]
if not same:
    sys.exit("the behaviour has changed")
print("as described: the mean of the window is not taken off")
PYTHON
