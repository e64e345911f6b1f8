#!/usr/bin/env bash
# safetensors saves a transposed NumPy array with its elements in another order: [[0, 3], [1, 4], [2, 5]] returns as [[0, 1], [2, 3], [4, 5]].
#
# Expected: the same array, or an error, as safetensors.torch raises for the same tensor. Seen with safetensors 0.8.0, torch 2.13.0 and
# NumPy 2.4.6 (x86-64 Linux) on 2026-11-29, for save and save_file: the bytes are copied from the address of the first element, and
# strides are ignored. Arrays in Fortran order, every second element and some of the columns are affected in the same way. The documentation asks for
# contiguous arrays, and nothing checks this. A transposed array of the other byte order is affected too. Each array has the right shape and
# type, so that weights that are views in NHWC order are wrong only in their values. np.ascontiguousarray before the call is enough.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 safetensors==0.8.0 torch==2.13.0
"$work/venv/bin/python" -W ignore - "$work/model.safetensors" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("safetensors", "torch", "numpy")))
matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
images = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
cases = {
    "transposed": (matrix.T, [[0, 1], [2, 3], [4, 5]]),
    "Fortran order": (np.asfortranarray(matrix), [[0, 3, 1], [4, 2, 5]]),
    "every second element": (np.arange(8)[::2], [0, 1, 2, 3]),
    "NHWC view of NCHW": (np.moveaxis(images, 1, -1), [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]),
    "contiguous copy": (np.ascontiguousarray(matrix.T), [[0, 3], [1, 4], [2, 5]]),
}
changed = False
for name, (array, expected) in cases.items():
    loaded = safetensors.numpy.load(safetensors.numpy.save({"x": array}))["x"]
    safetensors.numpy.save_file({"x": array}, sys.argv[1])
    from_file = safetensors.numpy.load_file(sys.argv[1])["x"]
    print(f"{name}: saved {array.tolist()}, loaded {loaded.tolist()}")
    changed |= loaded.tolist() != expected or not np.array_equal(loaded, from_file) or loaded.dtype != array.dtype
try:
    safetensors.torch.save({"x": torch.from_numpy(matrix.T)})
    error = "no error"
except ValueError as caught:
    error = str(caught)
print(f"the transposed array as a torch tensor: {error[:60]}...")
if changed or "non contiguous" not in error:
    sys.exit("the behaviour has changed")
print("as described: strides are ignored, and no error is raised")
PYTHON
