#!/usr/bin/env bash
# The Bark scale of Traunmueller of spafe is a straight line: 4 kHz are at 53.07 Bark, and 20 kHz at 267.5 Bark.
#
# Expected: 17.46 and 23.9 Bark, because the article that the docstring cites has 26.81 f / (1960 + f) - 0.53
# with f in Hz, and the scale ends near 24 Bark. Seen with spafe 0.3.3 and NumPy 2.4.6 on Linux: the docstring
# has 1 + 1960 as divisor, in which the frequency is missing, and the code has also 26.28 in place of
# 26.81. bark2hz of the same approach, which the docstring calls the inverse, is right up to 20.1 Bark, so that the way there and back
# turns 1 kHz into 1959 Hz and 4 kHz into -4480 Hz. The other five approaches return the frequency, except
# Terhardt's (4421 Hz), which divides by 13 in place of 13.3. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 matplotlib==3.10.8 spafe==0.3.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from spafe.utils.converters import bark2hz, hz2bark

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("spafe", "numpy")))
frequencies = [200.0, 1000.0, 4000.0, 20000.0]
changed = False
for f in frequencies:
    right = 26.81 * f / (1960 + f) - 0.53
    # Traunmueller's corrections below 2 and above 20.1 Bark.
    corrected = right + 0.15 * max(2 - right, 0) + 0.22 * max(right - 20.1, 0)
    seen = hz2bark(f, "Traunmueller")
    back, there = bark2hz(seen, "Traunmueller"), bark2hz(corrected, "Traunmueller")
    print(f"{f} Hz: {seen:.4f} Bark, right {right:.4f} ({corrected:.4f} with corrections); back {back:.2f} Hz,")
    print(f"    from the right number {there:.2f} Hz")
    changed |= not np.isclose(seen, 26.28 * f / 1961 - 0.53) or not np.isclose(there, f, rtol=2e-2)
    changed |= abs(back / f - 1) < 0.05 or (f >= 4000) != (back < 0)
ways = {}
for approach in ("Wang", "Tjomov", "Schroeder", "Zwicker", "Terhardt"):
    ways[approach] = float(bark2hz(hz2bark(4000.0, approach), approach))
print("4000 Hz there and back: " + ", ".join(f"{name} {value:.2f}" for name, value in ways.items()))
changed |= not np.allclose(list(ways.values()), [4000] * 4 + [4420.828367])
if changed:
    sys.exit("the behaviour has changed")
print("as described: the scale is a straight line")
PYTHON
