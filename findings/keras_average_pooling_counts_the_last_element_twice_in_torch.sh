#!/usr/bin/env bash
# Keras' average pooling with padding="same" counts the last element twice in the torch back end where the padding is uneven.
#
# Expected: means of the elements that a window covers, as in the NumPy and JAX back ends: 2 and 3.5 for 1 to 4, windows of 3 and stride 2. Seen with
# keras 3.15.1, torch 2.13.0, jax 0.10.2 and NumPy 2.4.6 (CPU): 2 and 3.667, because the image is padded with a copy of its edge, which then counts.
# Where both ends get as much padding, the results agree, so that odd lengths with odd windows do not show it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 jax==0.10.2 keras==3.15.1
cat > "$work/pool.py" <<'PYTHON'
import sys

import keras
import numpy as np


def means(length, window, stride):
    """Return the means of the elements that each window covers."""
    count = -(-length // stride)
    first = -(max(0, (count - 1) * stride + window - length) // 2)
    ends = [(max(0, start), start + window) for start in range(first, first + count * stride, stride)]
    numbers = np.arange(1, length + 1)
    return [round(float(numbers[start:end].mean()), 3) for start, end in ends]


name = keras.backend.backend()
uneven = []
for length, window, stride in ((4, 3, 2), (6, 3, 2), (5, 3, 2), (7, 3, 1)):
    x = np.arange(1, length + 1, dtype=np.float32).reshape(1, length, 1)
    pooled = keras.layers.AveragePooling1D(window, stride, padding="same")(x)
    found = [round(float(value), 3) for value in keras.ops.convert_to_numpy(pooled).ravel()]
    print(f"{name}: 1 to {length}, windows of {window}, stride {stride}: {found}, means {means(length, window, stride)}")
    uneven.append(found != means(length, window, stride))
sys.exit(0 if uneven == [name == "torch"] * 2 + [False] * 2 else "changed")
PYTHON
for backend in numpy jax torch; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/pool.py"
done
