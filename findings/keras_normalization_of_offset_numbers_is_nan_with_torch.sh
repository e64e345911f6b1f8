#!/usr/bin/env bash
# BatchNormalization and GroupNormalization of Keras return NaN with torch for numbers near 1000 that JAX normalizes.
#
# Expected: numbers with a standard deviation of about 1, as with the JAX back end and as torch.nn returns: 1000 with a deviation of 0.1 has 13
# bits for the deviation in float32. Seen with keras 3.15.1, torch 2.13.0, jax 0.10.2 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the torch
# back end subtracts the square of the mean from the mean of the squares, and the difference may be below -epsilon, so that its root
# is NaN. GroupNormalization is affected from 300 on; LayerNormalization is right. JAX has the same layers without NaN. No warning is given. The
# moving variance in the layer may be negative as well. Temperatures in kelvin, pressures and timestamps are such numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 jax==0.10.2 keras==3.15.1
cat > "$work/normalize.py" <<'PYTHON'
import importlib.metadata
import sys

import keras
import numpy as np
import torch

name = keras.backend.backend()
print(f"back end {name} ({', '.join(f'{package} {importlib.metadata.version(package)}' for package in ('keras', 'torch', 'jax', 'numpy'))})")
noise = 0.1 * np.random.default_rng(0).normal(size=(64, 8))
changed = False
for offset in (0, 10, 300, 1000, 3000):
    numbers = (offset + noise).astype(np.float32)
    group, batch = keras.layers.GroupNormalization(2), keras.layers.BatchNormalization(momentum=0)
    layers = {
        "GroupNormalization": lambda: group(numbers),
        "BatchNormalization": lambda: batch(numbers, training=True),
        "LayerNormalization": lambda: keras.layers.LayerNormalization()(numbers),
    }
    seen = {layer: keras.ops.convert_to_numpy(call()) for layer, call in layers.items()}
    seen["torch.nn.BatchNorm1d"] = torch.nn.BatchNorm1d(8, eps=1e-3)(torch.tensor(numbers)).detach().numpy()
    for layer, result in seen.items():
        broken = float(np.isnan(result).mean())
        print(f"{offset}, {layer}: {broken:.0%} NaN, deviation {np.nanstd(result):.2f}")
        wrong = name == "torch" and offset >= {"GroupNormalization": 300, "BatchNormalization": 1000}.get(layer, 1e9)
        changed |= (broken > 0) != wrong
        if offset != 3000 and not wrong and not (name == "torch" and offset == 300):
            changed |= not 0.8 < result.std() < 1.1
    lowest = float(keras.ops.convert_to_numpy(batch.moving_variance).min())
    print(f"  lowest moving variance {lowest:.4f}, variance of the numbers {float(numbers.astype(np.float64).var(0).min()):.4f}")
    changed |= (lowest < 0) != (name == "torch" and offset >= 1000)
if changed:
    sys.exit("the behaviour has changed")
print("as described: " + ("normalized numbers are NaN" if name == "torch" else "all numbers are finite"))
PYTHON
for backend in jax torch; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/normalize.py"
done
