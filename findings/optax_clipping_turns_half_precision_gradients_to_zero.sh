#!/usr/bin/env bash
# clip_by_global_norm of Optax turns finite float16 gradients into zeros if the sum of their squares exceeds 65504.
#
# Expected: gradients with the norm 1, such as 0.5 for four gradients of 300, as clip_grad_norm_ of PyTorch returns for float16, whose
# norm is 600. Seen with optax 0.2.8, jax 0.10.2, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: Optax sums the squares
# in float16, the norm is infinite, and each gradient divided by it is 0. A norm of 256 suffices. No warning is given, and no NaN stops
# the training: with a loss scale, which makes gradients large on purpose, the network stops to learn. bfloat16 gradients are clipped to
# about 0.5.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 torch==2.14.1
cat > "$work/clip.py" <<'PYTHON'
import importlib.metadata
import sys

import jax.numpy as jnp
import numpy as np
import optax
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("optax", "jax", "torch", "numpy")))
transform = optax.clip_by_global_norm(1.0)
changed = False
for value in (100.0, 300.0):
    for dtype in ("float16", "bfloat16", "float32"):
        gradients = [jnp.full((2,), value, dtype), jnp.full((2,), value, dtype)]
        norm = float(optax.tree.norm(gradients))
        clipped, _ = transform.update(gradients, transform.init(gradients))
        parameters = [torch.zeros(2, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(2)]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, value)
        torch_norm = float(torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        torch_clipped = float(parameters[1].grad[1])
        print(f"four {dtype} gradients of {value}: norm {norm}, clipped to {float(clipped[1][1]):.4f}", end="")
        print(f"; in PyTorch: norm {torch_norm}, clipped to {torch_clipped:.4f}")
        lost = dtype == "float16" and value == 300
        changed |= not np.isclose(norm, np.inf if lost else 2 * value, rtol=1e-2)
        changed |= not np.isclose(float(clipped[1][1]), 0 if lost else 0.5, rtol=1e-2)
        changed |= not np.isclose(torch_norm, 2 * value, rtol=1e-2) or not np.isclose(torch_clipped, 0.5, rtol=1e-2)
if changed:
    sys.exit("the behaviour has changed")
print("as described: clipping erases large float16 gradients")
PYTHON
HOME="$work" JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/clip.py"
