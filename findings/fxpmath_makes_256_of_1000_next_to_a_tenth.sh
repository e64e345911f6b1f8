#!/usr/bin/env bash
# fxpmath's Fxp([0.1, 1000.5]) is [0.1, 256], and Fxp([0.001, 5000]) is [0.001, 8]: the word that it chooses lacks the bits of the larger number.
#
# Expected: a word that holds both to a good precision, because the sizes are left to the library, which the documentation calls calculated to satisfy the
# value, or an error. Seen with fxpmath 0.4.10 and NumPy 2.4.6 on Linux: the fraction gets the bits of the number that needs the most, 55 for 0.1, the word has
# at most 64 bits, and the numbers that no longer fit are saturated. Each number alone is right. Only the flag status["overflow"] shows it; no
# warning is given. Weights of networks and filters are lists of small and large numbers, and "best" sizes are how their words are chosen.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 fxpmath==0.4.10
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from fxpmath import Fxp

print(f"fxpmath {importlib.metadata.version('fxpmath')}, NumPy {np.__version__}")
rows = {
    (0.1, 1000.5): [0.1, 256],
    (1000.5, 0.1): [256, 0.1],
    (0.1, -1000.5): [0.1, -256],
    (0.001, 5000.0): [0.001, 8],
    (0.5, 1000.5): [0.5, 1000.5],
    (0.1, 100.0): [0.1, 100],
}
changed = False
for numbers, expected in rows.items():
    fixed = Fxp(list(numbers))
    print(f"Fxp({list(numbers)}): {fixed().tolist()}, {fixed.dtype}, overflow {fixed.status['overflow']}, underflow {fixed.status['underflow']}")
    changed |= not np.allclose(fixed(), expected, rtol=1e-9)
for number in (0.1, 1000.5, 0.001, 5000.0):
    alone = Fxp(number)
    print(f"Fxp({number}): {float(alone())}, {alone.dtype}")
    changed |= abs(float(alone()) - number) > 1e-9
chosen = Fxp([0.1, 1000.5], signed=True, n_word=64, n_frac=53)
print(f"with 53 bits of fraction: {chosen().tolist()}, {chosen.dtype}")
changed |= not np.allclose(chosen(), [0.1, 1000.5], rtol=1e-9)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the larger number is saturated")
PYTHON
