#!/usr/bin/env bash
# distance_fast of dtaidistance returns infinity for one in seven pairs of three random numbers, and for a penalty of 4 in place of 6.
#
# Expected: the number that distance returns, because the pruning that distance_fast turns on by default only skips paths that cannot be the
# best. Seen with dtaidistance 2.5.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: a path must be below a bound, the distance without
# warping. If that is the best path, its sum equals the bound up to rounding, and no path is left: 16 percent of random pairs of length 3 and
# 2 percent of length 6. The bound has no penalties, which sequences of different lengths need, so that a penalty of 1 makes a quarter of
# the pairs of lengths 6 and 8 infinite. distance(use_pruning=True) has the same results; distance_fast(use_pruning=False) and
# distance_matrix_fast, which does not prune, are right. No warning is given. An infinite distance reads as a pair that cannot be aligned.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 dtaidistance==2.5.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from dtaidistance import dtw

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dtaidistance", "numpy")))


def exact(first, second, penalty):
    """Return the distance by the recursion of the documentation, with the squared penalty for squared distances."""
    table = np.full((len(first) + 1, len(second) + 1), np.inf)
    table[0, 0] = 0
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            table[i + 1, j + 1] = (x - y) ** 2 + min(table[i, j], table[i, j + 1] + penalty**2, table[i + 1, j] + penalty**2)
    return float(np.sqrt(table[-1, -1]))


first, second = np.array([0.0, 0, 1, 2, 1, 0]), np.array([0.0, 1, 2, 1, 0, 0, 0, 0])
changed = False
for penalty, infinite in ((0, False), (0.5, False), (1, False), (2, True), (4, True)):
    wanted = exact(first, second, penalty)
    plain, fast = dtw.distance(first, second, penalty=penalty), dtw.distance_fast(first, second, penalty=penalty)
    unpruned = dtw.distance_fast(first, second, penalty=penalty, use_pruning=False)
    pruned = dtw.distance(first, second, penalty=penalty, use_pruning=True)
    matrix = dtw.distance_matrix_fast([first, second], penalty=penalty)[0, 1]
    print(f"penalty {penalty}: recursion {wanted:.3f}, distance {plain:.3f}, with pruning {pruned:.3f}, distance_fast {fast:.3f}", end="")
    print(f", without pruning {unpruned:.3f}, distance_matrix_fast {matrix:.3f}")
    changed |= not np.allclose([plain, unpruned, matrix], wanted)
    changed |= np.isinf(fast) != infinite or np.isinf(pruned) != infinite or (not infinite and not np.isclose(fast, wanted))
for lengths, penalty, low, high in (((3, 3), 0, 0.1, 0.25), ((6, 6), 0, 0.01, 0.1), ((6, 8), 1, 0.1, 0.5), ((6, 8), 4, 0.9, 1)):
    generator = np.random.default_rng(0)
    pairs = [[generator.normal(size=length) for length in lengths] for _ in range(1000)]
    share = np.mean([np.isinf(dtw.distance_fast(*pair, penalty=penalty)) for pair in pairs])
    right = all(np.isclose(dtw.distance_fast(*pair, penalty=penalty, use_pruning=False), exact(*pair, penalty)) for pair in pairs)
    print(f"lengths {lengths}, penalty {penalty}: {share:.1%} of random pairs are infinite; without pruning all are right: {right}")
    changed |= not low <= share <= high or not right
if changed:
    sys.exit("the behaviour has changed")
print("as described: the best path is pruned")
PYTHON
