#!/usr/bin/env bash
# pairwise_distance of pytorch-metric-learning's CosineSimilarity returns dot products: 50 for (3, 4) and (6, 8), whose cosine is 1.
#
# Expected: the diagonal of the matrix that the same object returns when it is called. Seen with pytorch-metric-learning 2.9.0, torch
# 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: calling the object normalizes the embeddings and takes the power, and
# pairwise_distance does neither. LpDistance, which normalizes by default, returns 5 for the pair, whose distance in the matrix is 0, and
# power=2 is ignored. A threshold that was found with the matrix sees other numbers, unless the embeddings have unit length. No warning is
# given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 pytorch-metric-learning==2.9.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pytorch-metric-learning", "torch")))
first = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
second = torch.tensor([[6.0, 8.0], [-6.0, -8.0], [4.0, -3.0]])
cases = {
    "CosineSimilarity": (CosineSimilarity(), [1, -1, 0], [50, -50, 0]),
    "LpDistance": (LpDistance(), [0, 2, 2**0.5], [5, 15, 50**0.5]),
    "LpDistance, power=2": (LpDistance(power=2), [0, 4, 2], [5, 15, 50**0.5]),
    "LpDistance, power=2, not normalized": (LpDistance(normalize_embeddings=False, power=2), [25, 225, 50], [5, 15, 50**0.5]),
    "LpDistance, not normalized": (LpDistance(normalize_embeddings=False), [5, 15, 50**0.5], [5, 15, 50**0.5]),
}
changed = False
for name, (distance, matrix, pairs) in cases.items():
    diagonal, seen = distance(first, second).diagonal(), distance.pairwise_distance(first, second)
    print(f"{name}: matrix {diagonal.round(decimals=3).tolist()}, pairs {seen.round(decimals=3).tolist()}")
    changed |= not torch.allclose(diagonal, torch.tensor(matrix, dtype=torch.float32), atol=1e-2)
    changed |= not torch.allclose(seen, torch.tensor(pairs, dtype=torch.float32), atol=1e-2)
if changed:
    sys.exit("the behaviour has changed")
print("as described: pairs are neither normalized nor raised to the power")
PYTHON
