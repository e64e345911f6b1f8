#!/usr/bin/env bash
# Of 4 points, 2 have a neighbour at distance 1 and 2 at distance 5: the G function of pointpats at distance 2 is 1 if asked for 0 to 2, and a half for 0 to 6.
#
# Expected: the share of the points whose nearest neighbour is within the distance, the cumulative distribution that the description names, which does not
# depend on the other distances asked for. Seen with pointpats 2.5.5, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the counts are divided by
# the number of points within the support, not by that of all, so that G and F end at 1 with any support, and J, their ratio, is wrong with them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pointpats==2.5.5 scipy==1.17.1 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pointpats import f, g

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pointpats", "scipy", "numpy")))
points = np.array([[0, 0], [0, 1], [10, 0], [10, 5]], float)
pairs = np.hypot(*(points[:, None] - points[None]).T)
nearest = (pairs + np.diag([np.inf] * 4)).min(0)
empty = np.array([0.5, 1.5, 3.0, 4.0, 5.5])  # distances from other places to the nearest point
same = True
for support, seen_g, seen_f in ([0, 2], [0, 1], [0, 1]), ([0, 2, 6], [0, 0.5, 1], [0, 0.4, 1]), ([0, 2, 4.5], [0, 1, 1], [0, 0.5, 1]):
    values_g, values_f = g(points, support=np.array(support))[1], f(points, support=np.array(support), distances=empty)[1]
    right_g, right_f = [(nearest <= s).mean() for s in support], [(empty <= s).mean() for s in support]
    print(f"at {support}: G {values_g.tolist()}, by the definition {[float(v) for v in right_g]}")
    print(f"   F {values_f.tolist()}, by the definition {[float(v) for v in right_f]}")
    same &= np.allclose(values_g, seen_g) and np.allclose(values_f, seen_f)
    same &= np.isclose(right_g[1], 0.5) and np.isclose(right_f[1], 0.4)
if not same:
    sys.exit("the behaviour has changed")
print("as described: the shares depend on the largest distance asked for")
PYTHON
