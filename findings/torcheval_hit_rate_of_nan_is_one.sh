#!/usr/bin/env bash
# TorchEval gives a network whose scores are all NaN a hit rate of 1, a reciprocal rank of 1 and a top-2 accuracy of 1.
#
# Expected: 0, as for a target that is not found, NaN, or an error, as scikit-learn's top_k_accuracy_score raises. Seen with torcheval 0.0.7, torch 2.13.0
# and scikit-learn 1.8.0 (CPU, x86-64 Linux) on 2026-11-29: the rank of the target is the number of classes with a higher score, and no score is
# higher than NaN, nor is NaN higher than a score. One NaN at the target is enough. multiclass_accuracy with k=1 takes the first NaN for the
# largest score, and is 1 for targets of class 0 only. No warning is given. The best checkpoint by such a metric is the one after the divergence.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 scikit-learn==1.8.0 torcheval==0.0.7
cat > "$work/metrics.py" <<'PYTHON'
import importlib.metadata
import math
import sys

import sklearn.metrics
import torch
from torcheval.metrics.functional import hit_rate, multiclass_accuracy, reciprocal_rank

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torcheval", "torch", "scikit-learn")))
targets = torch.tensor([3, 0, 1, 2])
scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
wrong = scores.scatter(1, targets[:, None], -1.0)
right = scores.scatter(1, targets[:, None], 2.0)
cases = {
    "the target has the highest score": (right, 1, 1, 1),
    "the target has the lowest score": (wrong, 0, 0.2, 0),
    "the target has the score NaN": (scores.scatter(1, targets[:, None], math.nan), 1, 1, 1),
    "all scores are NaN": (torch.full_like(scores, math.nan), 1, 1, 0.25),
}
changed = False
for name, (values, *described) in cases.items():
    hits, ranks = hit_rate(values, targets, k=1), reciprocal_rank(values, targets)
    first, second = (float(multiclass_accuracy(values, targets, num_classes=5, k=k)) for k in (1, 2))
    seen = [float(hits.mean()), float(ranks.mean()), first]
    print(f"{name}: hit rate {seen[0]:.2f}, reciprocal rank {seen[1]:.2f}, top-1 accuracy {first:.2f}, top-2 accuracy {second:.2f}")
    changed |= any(abs(a - b) > 1e-6 for a, b in zip(seen, described)) or second != described[0]
    try:
        other = sklearn.metrics.top_k_accuracy_score(targets.numpy(), values.numpy(), k=1, labels=range(5))
    except ValueError as error:
        print(f"  scikit-learn: {str(error).splitlines()[0]}")
        changed |= "NaN" not in name
    else:
        print(f"  scikit-learn: {other:.2f}")
        changed |= "NaN" in name or other != described[0]
if changed:
    sys.exit("the behaviour has changed")
print("as described: a target with the score NaN is a hit")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/metrics.py"
