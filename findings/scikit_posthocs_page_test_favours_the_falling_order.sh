#!/usr/bin/env bash
# Two blocks of rising ranks 1, 2, 3 have p = 0.080 in the Page test of scikit-posthocs, and the same blocks falling have 0.024; by symmetry both are 0.080.
#
# Expected: a correction for continuity brings the statistic nearer to its mean, and the reversed order has the opposite z, as the correction of
# test_jonckheere in this library has it too. Seen with scikit-posthocs 0.17.1, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the half is
# subtracted whatever the sign, so that z is 1.75 for the rising and -2.25 for the falling order, which is significant at 5 % while the rising one is not,
# and a sum at its mean has z = -0.25 and p = 0.80 in place of 0 and 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check scikit-posthocs==0.17.1 scipy==1.17.1 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math
import sys

import numpy as np
import scikit_posthocs

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("scikit-posthocs", "scipy", "numpy")))
same = True
cases = (("rising", [[1, 2, 3], [4, 5, 6]], 1.75, 1.75), ("falling", [[3, 2, 1], [6, 5, 4]], -2.25, -1.75), ("opposite", [[1, 2, 3], [6, 5, 4]], -0.25, 0))
for name, blocks, expected, right in cases:
    ranks = np.argsort(np.argsort(blocks, axis=1), axis=1) + 1
    n, k = ranks.shape
    distance = (ranks.sum(0) * np.arange(1, k + 1)).sum() - n * k * (k + 1) ** 2 / 4
    z = np.sign(distance) * max(abs(distance) - 0.5, 0) / math.sqrt(n * k**2 * (k + 1) * (k**2 - 1) / 144)
    p = math.erfc(abs(z) / math.sqrt(2))
    seen_p, seen_z = scikit_posthocs.test_page(np.array(blocks, float))
    print(f"{name}: z {seen_z:.2f}, p {seen_p:.4f}; with a symmetric correction z {z:.2f}, p {p:.4f}")
    same &= math.isclose(seen_z, expected, abs_tol=1e-9) and math.isclose(z, right, abs_tol=1e-9)
    same &= math.isclose(seen_p, math.erfc(abs(expected) / math.sqrt(2)), abs_tol=1e-9)
if not same:
    sys.exit("the behaviour has changed")
print("as described: the falling order has the larger statistic")
PYTHON
