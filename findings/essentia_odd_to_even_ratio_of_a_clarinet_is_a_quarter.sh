#!/usr/bin/env bash
# The ratio of odd to even harmonic energy is that of even to odd with Essentia: a quarter for a tone whose odd harmonics have four times the energy.
#
# Expected: the energy of the harmonics 1, 3, 5, ... over that of 2, 4, 6, ..., which is large for a clarinet or a closed organ pipe, as the algorithm's
# name and description say. Seen with essentia 2.1b6.dev1389 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: OddToEvenHarmonicEnergyRatio counts the
# peaks from 0, so that the fundamental is even. Instruments are described as their opposites.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check essentia==2.1b6.dev1389 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON' 2> /dev/null
import importlib.metadata
import sys

import essentia.standard as es
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("essentia", "numpy")))
frequencies = 100 * np.arange(1, 7, dtype=np.float32)
described = {(2, 1, 2, 1, 2, 1): 0.25, (1, 2, 1, 2, 1, 2): 4.0, (1, 1, 1, 1, 1, 1): 1.0}
same = True
for magnitudes, expected in described.items():
    peaks = np.array(magnitudes, np.float32)
    seen = es.OddToEvenHarmonicEnergyRatio()(frequencies, peaks)
    right = (peaks[0::2] ** 2).sum() / (peaks[1::2] ** 2).sum()
    print(f"harmonics {magnitudes}: {seen:.4g}, odd over even is {right:.4g}")
    same &= bool(np.isclose(seen, expected)) and bool(np.isclose(seen * right, 1))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the ratio is that of even to odd harmonics")
PYTHON
