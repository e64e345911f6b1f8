#!/usr/bin/env bash
# The Ball-Hall index of two clusters is 4 with permetrics if they have four points each, and 8 with each point twice; by its definition it is 1 for both.
#
# Expected: the mean over clusters of their mean dispersion, the mean of the squared distances to their centre, in the words of its description too.
# Seen with permetrics 2.1.0 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the sums of squares of the clusters are averaged, not their means, so that a
# cluster counts by its points, and the index of a sample is smaller than the index of all data by the size of the sample. Its differences between
# numbers of clusters, by which one of these is chosen, compare other quantities.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check permetrics==2.1.0 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from permetrics import ClusteringMetric

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("permetrics", "numpy")))
corners = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], float)
points, labels = np.concatenate([corners, corners + 10]), np.repeat([0, 1], 4)
same = True
for times, expected in ((1, 4), (2, 8), (10, 40)):
    x, y = np.repeat(points, times, axis=0), np.repeat(labels, times)
    seen = float(ClusteringMetric(X=x, y_pred=y).ball_hall_index())
    right = np.mean([((x[y == k] - x[y == k].mean(0)) ** 2).sum(1).mean() for k in (0, 1)])
    print(f"each point {times} times: {seen:g}, by the definition {right:g}")
    same &= bool(np.isclose(seen, expected) and np.isclose(right, 1))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the index grows with the number of points")
PYTHON
