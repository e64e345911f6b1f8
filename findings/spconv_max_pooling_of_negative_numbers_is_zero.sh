#!/usr/bin/env bash
# spconv's max pooling returns 0 for windows in which all features are negative.
#
# Expected: the largest feature of the active voxels of the window, as for positive features. Seen with spconv 2.3.8, cumm 0.7.11,
# torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, for SparseMaxPool1d to SparseMaxPool3d: the result is the maximum with 0, in a
# window that has only active voxels too. An output voxel exists for each window with an active voxel, so an empty voxel is not the reason. The
# dense max_pool3d of PyTorch returns the negative number. A pooling layer behind a normalization without a ReLU is such a case. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check cumm==0.7.11 spconv==2.3.8
cat > "$work/pooling.py" <<'PYTHON'
import importlib.metadata
import sys

import spconv.pytorch as spconv
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("spconv", "cumm", "torch")))
changed = False


def pooled(features, dimensions):
    """Return the maxima of spconv and of PyTorch for a tensor in which all voxels are active."""
    shape = [4] * dimensions
    places = torch.ones(1, *shape).nonzero().int().contiguous()
    kind = getattr(spconv, f"SparseMaxPool{dimensions}d")
    result = kind(2, 2)(spconv.SparseConvTensor(features, places, shape, 1)).dense()
    dense = spconv.SparseConvTensor(features, places, shape, 1).dense()
    correct = getattr(torch.nn.functional, f"max_pool{dimensions}d")(dense, 2, 2)
    return result.flatten(), correct.flatten()


for dimensions in (1, 2, 3):
    numbers = torch.arange(1, 4**dimensions + 1, dtype=torch.float32)[:, None]
    for name, features in (("positive", numbers), ("negative", -numbers), ("mixed", numbers - 2.5)):
        seen, correct = pooled(features, dimensions)
        print(f"{dimensions}d, {name}: spconv {seen[:4].tolist()}, PyTorch {correct[:4].tolist()}")
        changed |= not torch.equal(seen, correct.clamp(min=0))
        changed |= (name == "negative") != bool((correct < 0).all())
if changed:
    sys.exit("the behaviour has changed")
print("as described: negative maxima are 0")
PYTHON
"$work/venv/bin/python" -W ignore "$work/pooling.py"
