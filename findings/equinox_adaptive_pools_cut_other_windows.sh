#!/usr/bin/env bash
# The adaptive poolings of Equinox cut a length of 7 into windows of 3, 2 and 2; those of PyTorch overlap and have 3 elements each.
#
# Expected: the means 1, 3 and 5 of 0 to 6, as torch.nn.AdaptiveAvgPool1d returns, from which the layer has its name. Seen with equinox
# 0.13.8, jax 0.10.2, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: Equinox returns 1, 3.5 and 5.5, the means of
# numpy.array_split. In two dimensions, a map of 7 x 7 elements pooled to 3 x 3 differs in eight of nine elements. Maxima of negated ramps
# differ too. Lengths that the output size divides agree. No warning is given. Weights of a PyTorch network that pools maps of other sizes
# than in its training give other results in Equinox.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 equinox==0.13.8 torch==2.14.1
cat > "$work/pool.py" <<'PYTHON'
import importlib.metadata
import sys

import equinox
import jax.numpy as jnp
import numpy as np
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("equinox", "jax", "torch", "numpy")))
changed = False
for length, size in ((6, 3), (7, 3), (10, 4)):
    ramp = np.arange(length, dtype=np.float32)[None]
    means = np.asarray(equinox.nn.AdaptiveAvgPool1d(size)(jnp.asarray(ramp)))[0]
    maxima = np.asarray(equinox.nn.AdaptiveMaxPool1d(size)(jnp.asarray(-ramp)))[0]
    torch_means = torch.nn.AdaptiveAvgPool1d(size)(torch.from_numpy(ramp)).numpy()[0]
    torch_maxima = torch.nn.AdaptiveMaxPool1d(size)(torch.from_numpy(-ramp)).numpy()[0]
    print(f"{length} to {size}: means {means.tolist()}, in PyTorch {torch_means.tolist()}", end="")
    print(f"; maxima of the negated ramp {maxima.tolist()}, in PyTorch {torch_maxima.tolist()}")
    pieces = np.array_split(ramp[0], size)
    changed |= not np.allclose(means, [piece.mean() for piece in pieces])
    changed |= not np.allclose(maxima, [-piece.min() for piece in pieces])
    changed |= np.allclose(means, torch_means) != (length % size == 0) or np.allclose(maxima, torch_maxima) != (length % size == 0)
plane = np.arange(49, dtype=np.float32).reshape(1, 7, 7)
ours = np.asarray(equinox.nn.AdaptiveAvgPool2d(3)(jnp.asarray(plane)))
theirs = torch.nn.AdaptiveAvgPool2d(3)(torch.from_numpy(plane)).numpy()
unequal = int((abs(ours - theirs) > 1e-3).sum())
print(f"7 x 7 to 3 x 3: {unequal} of 9 means differ")
if changed or unequal != 8:
    sys.exit("the behaviour has changed")
print("as described: the windows of the two packages differ")
PYTHON
HOME="$work" JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/pool.py"
