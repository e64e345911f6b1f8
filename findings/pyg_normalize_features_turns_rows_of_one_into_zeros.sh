#!/usr/bin/env bash
# NormalizeFeatures of PyTorch Geometric subtracts the smallest number of all rows first: [[1, 3], [1, 1]] becomes [[0, 1], [0, 0]].
#
# Expected: [0.25, 0.75] and [0.5, 0.5], because the documentation says that rows are normalized to sum up to one. Seen with torch-
# geometric 2.8.1, torch 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the minimum of the whole matrix is subtracted from each
# element, and a sum below 1 is taken as 1. Counts with a 0 somewhere are right. Features without a 0 lose a part of each row, a row of
# the smallest number becomes zeros, and rows of small numbers do not sum to one. One row with -1 changes all other rows, so that the
# features of a part of a graph differ from the same part of the features of the graph. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 torch-geometric==2.8.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch-geometric", "torch")))
cases = {
    "counts with a 0": ([[0, 2], [1, 3]], [[0, 1], [0.25, 0.75]]),
    "counts without a 0": ([[1, 3], [1, 1]], [[0, 1], [0, 0]]),
    "equal features": ([[2, 2], [4, 4]], [[0, 0], [0.5, 0.5]]),
    "one negative number": ([[1, 3], [-1, 3]], [[1 / 3, 2 / 3], [0, 1]]),
    "small numbers": ([[0, 0.25], [0.125, 0.125]], [[0, 0.25], [0.125, 0.125]]),
}
changed = False
for name, (rows, expected) in cases.items():
    x = torch.tensor(rows, dtype=torch.float32)
    seen = NormalizeFeatures()(Data(x=x.clone())).x
    sums = x / x.sum(dim=1, keepdim=True)
    print(f"{name}: {x.tolist()} becomes {seen.tolist()}; divided by their sums {sums.tolist()}")
    changed |= not torch.allclose(seen, torch.tensor(expected, dtype=torch.float32))
    changed |= torch.allclose(seen, sums) != (name == "counts with a 0")
if changed:
    sys.exit("the behaviour has changed")
print("as described: the smallest number is subtracted, and a row becomes zeros")
PYTHON
