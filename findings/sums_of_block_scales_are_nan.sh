#!/usr/bin/env bash
# The sum and the mean of a float8_e8m0fnu array are NaN in NumPy and JAX, although its numbers and its cumulative sum are finite.
#
# Expected: 8 and 2 for the scales 4, 2, 1 and 1, all of which the type represents; cumsum ends with 8. Seen with ml_dtypes 0.6.0, NumPy
# 2.4.6 and jax 0.10.2 (CPU, x86-64 Linux) on 2026-11-29: the type of the scales of MX formats contains powers of two without a zero, sums
# begin with a zero, and a zero is converted to NaN. numpy.sum with initial= or dtype=float32 is right. numpy.pad fills with NaN,
# numpy.zeros returns 2 ** -127, and jax.numpy.zeros returns NaN. No warning is given. The mean of the scales of a layer is NaN, and
# padded blocks, which should have no effect, turn each product into NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 jaxlib==0.10.2
cat > "$work/scales.py" <<'PYTHON'
import importlib.metadata
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ml_dtypes", "numpy", "jax")))
nan = np.nan
scales = np.array([4, 2, 1, 1], ml_dtypes.float8_e8m0fnu)
on_device = jnp.asarray(scales)
results = {
    "scales": (scales, [4, 2, 1, 1]),
    "scales[0] + scales[0]": (scales[0] + scales[0], 8),
    "cumsum": (np.cumsum(scales)[-1], 8),
    "sum": (np.sum(scales), nan),
    "sum from an initial element": (np.sum(scales[1:], initial=scales[0]), 8),
    "sum in float32": (np.sum(scales, dtype=np.float32), 8),
    "mean": (np.mean(scales), nan),
    "mean in float32": (np.mean(scales, dtype=np.float32), 2),
    "largest": (np.max(scales), 4),
    "sum in JAX": (jnp.sum(on_device), nan),
    "mean in JAX": (jnp.mean(on_device), nan),
    "padded": (np.pad(scales, (0, 1)), [4, 2, 1, 1, nan]),
    "zeros": (np.zeros(1, scales.dtype), [2.0**-127]),
    "zeros in JAX": (jnp.zeros(1, scales.dtype), [nan]),
}
changed = False
for name, (result, expected) in results.items():
    numbers = np.asarray(result).astype(np.float64)
    print(f"{name}: {numbers.tolist()}")
    changed |= not np.allclose(numbers, expected, rtol=1e-6, atol=0, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: sums of scales are NaN")
PYTHON
HOME="$work" JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/scales.py"
