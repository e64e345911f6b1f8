#!/usr/bin/env bash
# The mean squared error between two sounds of 16 bits is -0.5 with padasip in place of 25,898,418, and its root is not a number.
#
# Expected: the errors of the same numbers in float64, because MAE of the same module is right for these sounds. Seen with padasip 1.2.2 and
# NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: MSE, RMSE and logSE square the error in int16, where the squares wrap around. get_mean_error, which
# compares filters, returns the same. The adaptive filters of the library remove echoes from sound, which files have in 16 bits.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check padasip==1.2.2 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import padasip

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("padasip", "numpy")))
phase = 2 * np.pi * 220 * np.arange(8000) / 8000
sound, filtered = (20000 * np.sin(phase)).astype(np.int16), (15000 * np.sin(phase + 0.3)).astype(np.int16)
described = {"MSE": (-0.536, 25898417.64), "RMSE": (np.nan, 5089.04879521), "MAE": (4581.78, 4581.78)}
same = True
for name, expected in described.items():
    error = getattr(padasip.misc, name)
    seen = error(sound, filtered), error(sound.astype(float), filtered.astype(float))
    print(f"{name}: int16 {seen[0]:.8g}, float64 {seen[1]:.8g}")
    same &= np.allclose(seen, expected, rtol=1e-6, equal_nan=True)
    same &= np.allclose(padasip.misc.get_mean_error(sound, filtered, function=name), expected[0], equal_nan=True)
if not same:
    sys.exit("the behaviour has changed")
print("as described: squares of 16-bit errors wrap around")
PYTHON
