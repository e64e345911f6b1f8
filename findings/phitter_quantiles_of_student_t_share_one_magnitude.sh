#!/usr/bin/env bash
# Quantiles that phitter computes for several probabilities of Student's t distribution all have the magnitude of the most extreme one.
#
# Expected: for each probability its own quantile, as from one probability at a time and from SciPy, because ppf
# takes arrays and sample passes one. Seen with phitter 1.0.4, SciPy 1.17.1 and NumPy 2.4.6 on Linux: the
# smallest of all probabilities is taken where the smaller one of each and its complement is meant. With 8 degrees
# of freedom the lower quartile is -2.31 in place of -0.71 next to the probability 0.025, and a sample of any size
# has two values, of which one is the other with the sign changed. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 phitter==1.0.4
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.stats
from phitter.continuous import TStudent

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("phitter", "scipy", "numpy")))
own, other = TStudent({"df": 8}), scipy.stats.t(8)
u = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
together, alone, right = own.ppf(u), [float(own.ppf(one)) for one in u], other.ppf(u)
magnitudes = np.unique(np.abs(own.sample(1000)).round(9))
print(f"quantiles: together {np.round(together, 4).tolist()}, one by one {np.round(alone, 4).tolist()}, SciPy {np.round(right, 4).tolist()}")
print(f"the cumulative probability of the lower quartile is {float(own.cdf(together[1])):.4f}; 1,000 samples have {len(magnitudes)} magnitude(s)")
changed = not np.allclose(together, [right[0], right[0], 0, right[4], right[4]], atol=1e-6)
changed |= not np.allclose(alone, right, atol=1e-6) or len(magnitudes) != 1
if changed:
    sys.exit("the behaviour has changed")
print("as described: all quantiles of a call have the magnitude of the most extreme one")
PYTHON
