#!/usr/bin/env bash
# keras.ops.pad with mode="symmetric" repeats the edge in the torch back end: 1, 2, 3, 4 begins with 1, 1, 1 in place of 3, 2, 1.
#
# Expected: the mirror image with the edge, which NumPy calls "symmetric" and which the NumPy and JAX back ends return. Seen with keras 3.15.1,
# torch 2.13.0, jax 0.10.2 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the result is that of numpy.pad with mode="edge". A padding of one
# element is the same in both modes, so that 3x3 convolutions do not show the difference. "reflect" and "constant" are right. No warning
# is given. A filter with a larger window returns another border as soon as the back end is changed, and texture becomes streaks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 jax==0.10.2 keras==3.15.1
cat > "$work/pad.py" <<'PYTHON'
import importlib.metadata
import sys

import keras
import numpy as np

name = keras.backend.backend()
versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("keras", "torch", "jax", "numpy"))
print(f"back end {name} ({versions})")
signal = np.array([[1, 2, 3, 4]], np.float32)
image = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
changed = False
for array, axes in ((signal, (1,)), (image, (1, 2))):
    for size in (1, 2, 3):
        width = [(size, size) if axis in axes else (0, 0) for axis in range(array.ndim)]
        for mode in ("constant", "reflect", "symmetric"):
            seen = keras.ops.convert_to_numpy(keras.ops.pad(array, width, mode=mode))
            if array is signal:
                print(f"{mode}, {size}: {seen[0].astype(int).tolist()}")
            described = "edge" if name == "torch" and mode == "symmetric" else mode
            changed |= not np.array_equal(seen, np.pad(array, width, mode=described))
            changed |= size > 1 and np.array_equal(seen, np.pad(array, width, mode=mode)) != (described == mode)
if changed:
    sys.exit("the behaviour has changed")
print("as described: symmetric padding is " + ("a copy of the edge" if name == "torch" else "a mirror image"))
PYTHON
for backend in numpy jax torch; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/pad.py"
done
