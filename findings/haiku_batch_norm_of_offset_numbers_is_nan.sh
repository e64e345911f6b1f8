#!/usr/bin/env bash
# BatchNorm of Haiku returns NaN for numbers near 1000 with a deviation of 0.1, and LayerNorm of Flax returns values up to hundreds.
#
# Expected: numbers with a standard deviation of about 1, as LayerNorm and GroupNorm of Haiku return: float32 has 13 bits for this deviation.
# Seen with dm-haiku 0.0.17, flax 0.12.8, jax 0.10.2 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: both subtract the square of the mean from the
# mean of the squares. Haiku takes the root of a negative variance, and 31 % of the results are NaN. Flax replaces a negative variance by 0, so that
# the result is divided by the root of epsilon: LayerNorm, GroupNorm and BatchNorm of Flax return deviations of 23 to 75. With
# use_fast_variance=False, Flax is right. No warning is given. A layer after a large bias returns noise, or NaN, from the first step on.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 dm-haiku==0.0.17 flax==0.12.8
cat > "$work/norm.py" <<'PYTHON'
import importlib.metadata
import sys

import flax.linen as nn
import haiku as hk
import jax
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dm-haiku", "flax", "jax", "numpy")))
noise = 0.1 * np.random.default_rng(0).normal(size=(64, 64))
key = jax.random.key(0)


def haiku(layer):
    """Return a function that applies a layer of Haiku to numbers."""

    def call(numbers):
        function = hk.transform_with_state(lambda x: layer()(x, True) if layer is batch else layer()(x))
        return function.apply(*function.init(key, numbers), None, numbers)[0]

    return call


def flax(layer):
    """Return a function that applies a layer of Flax to numbers."""

    def call(numbers):
        variables = layer.init(key, numbers)
        return layer.apply(variables, numbers, mutable=["batch_stats"])[0]

    return call


def batch():
    return hk.BatchNorm(True, True, 0.9)


cases = {
    "Haiku BatchNorm": (haiku(batch), "NaN"),
    "Haiku LayerNorm": (haiku(lambda: hk.LayerNorm(-1, True, True)), "right"),
    "Haiku GroupNorm": (haiku(lambda: hk.GroupNorm(2)), "right"),
    "Flax BatchNorm": (flax(nn.BatchNorm(use_running_average=False)), "large"),
    "Flax LayerNorm": (flax(nn.LayerNorm()), "large"),
    "Flax GroupNorm": (flax(nn.GroupNorm(num_groups=2)), "large"),
    "Flax LayerNorm, use_fast_variance=False": (flax(nn.LayerNorm(use_fast_variance=False)), "right"),
}
changed = False
for offset in (0, 100, 1000):
    numbers = (offset + noise).astype(np.float32)
    for name, (function, described) in cases.items():
        result = np.asarray(function(numbers))
        missing = np.isnan(result).mean()
        deviation = float(np.nanstd(result))
        print(f"{offset}, {name}: {missing:.0%} NaN, deviation {deviation:.2f}, largest {np.nanmax(abs(result)):.1f}")
        if offset == 0 or described == "right":
            changed |= missing > 0 or not 0.95 < deviation < 1.05
        elif described == "NaN":
            changed |= (offset == 1000) != (missing > 0)
        else:
            changed |= missing > 0 or (offset == 1000) != (deviation > 10)
if changed:
    sys.exit("the behaviour has changed")
print("as described: numbers near 1000 are normalized to NaN by Haiku and to large numbers by Flax")
PYTHON
JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/norm.py"
