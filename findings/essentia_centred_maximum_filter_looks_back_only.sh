#!/usr/bin/env bash
# Essentia's maximum filter looks back over its whole window with causal=False too: the maxima of a centred window come half a window late.
#
# Expected: a window around the current element, as the description of the parameter says, and as scipy.ndimage.maximum_filter1d has it. Seen with
# essentia 2.1b6.dev1389, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the results of causal=True and causal=False are equal, also
# for an even width, which the description says becomes odd. Onsets that are picked where a signal equals its centred maximum
# include samples which a larger one follows.
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
from scipy.ndimage import maximum_filter1d

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("essentia", "scipy", "numpy")))
x = np.array([0, 0, 1, 2, 3, 9, 3, 2, 1, 0, 0, 0], np.float32)
same = True
for width in (3, 4, 5):
    seen, causal = (es.MaxFilter(width=width, causal=causal)(x) for causal in (False, True))
    centred = maximum_filter1d(x, width | 1, mode="nearest")
    print(f"width {width}: {seen.astype(int)}, centred {centred.astype(int)}")
    same &= np.array_equal(seen, causal) and not np.array_equal(seen, centred)
if not same:
    sys.exit("the behaviour has changed")
print("as described: the centred filter is the causal one")
PYTHON
