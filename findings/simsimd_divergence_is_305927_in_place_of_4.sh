#!/usr/bin/env bash
# SimSIMD computes the Kullback-Leibler divergence of float64 with three terms of a series: 4.5 becomes 305927.
#
# Expected: the values of SciPy to about seven digits, as SimSIMD returns for float32, and not fewer digits for the wider type. Seen with
# simsimd 6.5.16, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux with AVX2) on 2026-11-29: each logarithm of a quotient r in float64 is
# u - u * u / 2 + u * u * u / 3 with u = r - 1, so that log(2) is 0.8333 and log(10) is 211.5. The divergence of (0.99, 0.01) from
# (0.01, 0.99) is 305927 in float64, and 4.50 in float32 and float16. Numbers of similar size hide this: the divergence of (0.5, 0.5)
# from (0.4, 0.6) is 0.0209 in place of 0.0204. No warning is given. NumKong 7.8.6, the library that follows SimSIMD, is right. A search for
# the nearest distribution in NumPy's default type returns other neighbours.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 simsimd==6.5.16 numkong==7.8.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numkong
import numpy as np
import simsimd
from scipy.special import rel_entr

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("simsimd", "numkong", "scipy", "numpy")))
pairs = {
    "equal": ([0.5, 0.5], [0.5, 0.5]),
    "similar": ([0.5, 0.5], [0.4, 0.6]),
    "twice": ([0.2] * 5, [0.1, 0.1, 0.1, 0.1, 0.6]),
    "ten to one": ([0.9, 0.1], [0.1, 0.9]),
    "hundred to one": ([0.99, 0.01], [0.01, 0.99]),
}
changed = False
for name, pair in pairs.items():
    p, q = (np.array(part) for part in pair)
    true, u = float(rel_entr(p, q).sum()), p / q - 1
    series = float(np.sum(p * (u - u**2 / 2 + u**3 / 3)))
    wide, single, half = (float(simsimd.kullbackleibler(p.astype(kind), q.astype(kind))) for kind in ("f8", "f4", "f2"))
    successor = float(numkong.kullbackleibler(p, q))
    print(f"{name}: SciPy {true:.4f}, NumKong {successor:.4f}, three terms {series:.4f}")
    print(f"    SimSIMD: float64 {wide:.4f}, float32 {single:.4f}, float16 {half:.4f}")
    changed |= not np.isclose(wide, series, rtol=1e-3, atol=1e-6) or not np.isclose(successor, true, rtol=1e-6, atol=1e-9)
    changed |= not np.allclose([single, half], true, rtol=1e-2, atol=1e-3)
target = np.array([0.2, 0.8])
others = np.array([[0.6, 0.4], [0.02, 0.98]])
wide, single = (
    [float(simsimd.kullbackleibler(target.astype(kind), other.astype(kind))) for other in others] for kind in ("f8", "f4")
)
print(f"divergences of {target.tolist()} from {others.tolist()}: float64 {np.round(wide, 3).tolist()}, float32 {np.round(single, 3).tolist()}")
changed |= int(np.argmin(wide)) != 0 or int(np.argmin(single)) != 1
if changed:
    sys.exit("the behaviour has changed")
print("as described: the logarithm of float64 has three terms")
PYTHON
