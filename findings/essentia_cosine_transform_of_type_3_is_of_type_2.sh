#!/usr/bin/env bash
# Essentia's cosine transform of type 3 is of type 2, with another factor of the first coefficient, and does not invert the one of type 2.
#
# Expected: DCT-III, as for type=3 of SciPy, which is the inverse of type 2: both parameters are called the DCT type. Seen with essentia
# 2.1b6.dev1389, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: DCT with dctType=3 returns the coefficients of dctType=2, the first one
# multiplied by the square root of 2. IDCT with dctType=3, which has to be of type 2, inverts it. A program that was written with SciPy and takes type 3
# for the way back from cepstral coefficients gets them transformed twice in the same direction.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check essentia==2.1b6.dev1389 scipy==1.17.1 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON' 2> /dev/null
import importlib.metadata
import sys

import essentia.standard as es
import numpy as np
from scipy.fft import dct

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("essentia", "scipy", "numpy")))
x = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32)
ours = {kind: es.DCT(inputSize=8, outputSize=8, dctType=kind)(x) for kind in (2, 3)}
theirs = {kind: dct(x, type=kind, norm="ortho") for kind in (2, 3)}
for kind in (2, 3):
    print(f"type {kind}: Essentia {np.round(ours[kind], 3)}, SciPy {np.round(theirs[kind], 3)}")
back = es.DCT(inputSize=8, outputSize=8, dctType=3)(ours[2])
print(f"type 3 of type 2: Essentia {np.round(back, 3)}, SciPy {np.round(dct(theirs[2], type=3, norm='ortho'), 3)}")
same = np.allclose(ours[2], theirs[2], atol=1e-4)
same &= np.allclose(ours[3][1:], ours[2][1:], atol=1e-4) and np.isclose(ours[3][0], 2**0.5 * ours[2][0])
same &= not np.allclose(back, x, atol=0.1) and np.allclose(dct(theirs[2], type=3, norm="ortho"), x, atol=1e-4)
same &= np.allclose(es.IDCT(inputSize=8, outputSize=8, dctType=3)(ours[3]), x, atol=1e-4)
if not same:
    sys.exit("the behaviour has changed")
print("as described: type 3 is type 2 with another first coefficient")
PYTHON
