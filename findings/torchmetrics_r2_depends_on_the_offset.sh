#!/usr/bin/env bash
# r2_score of TorchMetrics changes when one number is added to targets and predictions: 0.94 becomes 0.0 at 3000 and 1.02 at 4000.
#
# Expected: 0.9375 for each offset, as scikit-learn and NumPy's float64 give for the same float32 numbers; the sums are exact here, so no
# number is rounded before the metric reads it. Seen with torchmetrics 1.9.0, torch 2.14.1, scikit-learn 1.8.0 and NumPy 2.4.6 (CPU,
# x86-64 Linux) on 2026-11-29: the metric computes the variance from the sum of the squares and the square of the sum in the type of its
# input, and returns values above 1, the maximum of the definition. explained_variance returns the same numbers; pearson_corrcoef is
# right. No warning is given. Pressures in hectopascals and temperatures in kelvins have such offsets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 torch==2.14.1 torchmetrics==1.9.0 scikit-learn==1.8.0
cat > "$work/offset.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import sklearn.metrics
import torch
from torchmetrics.functional import explained_variance, pearson_corrcoef, r2_score

torch.set_num_threads(1)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchmetrics", "torch", "scikit-learn", "numpy")))
index = np.arange(1024)
target = (index * 37 % 64 - 31.5) / 32
prediction = target + (index * 29 % 128 - 63.5) / 256
wanted = 1 - np.sum((target - prediction) ** 2) / np.sum((target - target.mean()) ** 2)
changed = False
errors = []
for offset in (0, 1000, 2000, 3000, 4000):
    t, p = (np.float32(numbers + offset) for numbers in (target, prediction))
    exact = np.array_equal(t.astype(np.float64) - offset, target) and np.array_equal(p.astype(np.float64) - offset, prediction)
    pair = torch.from_numpy(p), torch.from_numpy(t)
    results = [float(metric(*pair)) for metric in (r2_score, explained_variance, pearson_corrcoef)]
    double = float(r2_score(pair[0].double(), pair[1].double()))
    other = float(sklearn.metrics.r2_score(t, p))
    print(f"offset {offset}: r2 {results[0]:.4f}, explained variance {results[1]:.4f}, correlation {results[2]:.4f}", end="")
    print(f"; r2 in float64 {double:.4f}, in scikit-learn {other:.4f}")
    errors.append(abs(np.array(results[:2]) - wanted).max())
    changed |= not exact or abs(results[2] - np.corrcoef(target, prediction)[0, 1]) > 1e-3
    changed |= abs(double - wanted) > 1e-6 or abs(other - wanted) > 1e-3
if changed or errors[0] > 1e-5 or max(errors) < 0.05:
    sys.exit("the behaviour has changed")
print("as described: an offset changes the coefficient of determination")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/offset.py"
