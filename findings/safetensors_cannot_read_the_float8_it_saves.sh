#!/usr/bin/env bash
# safetensors.numpy saves float8 arrays of ml_dtypes and cannot read them: load raises KeyError, and load_file raises AttributeError.
#
# Expected: the saved array, or an error of save, as it raises for float8_e4m3b11fnuz. Seen with safetensors 0.8.0, ml_dtypes 0.6.0, torch 2.13.0
# and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29, for the five float8 types that the format has. bfloat16 is in between: load_file returns
# it, and load raises KeyError for the same bytes. safetensors.torch reads all but float8_e8m0fnu. One float8 array makes all arrays of
# the file unreadable for load and load_file, float32 arrays included; safe_open still reads the others one by one. Arrays that are
# saved as uint8, by view(np.uint8), return complete.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0 torch==2.13.0
"$work/venv/bin/python" -W ignore - "$work/model.safetensors" <<'PYTHON'
import importlib.metadata
import sys

import ml_dtypes
import numpy as np
import safetensors.numpy
import safetensors.torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("safetensors", "ml_dtypes", "torch", "numpy")))


def read(function, argument):
    """Return the numbers of the array "weights", or the name of the error."""
    try:
        weights = function(argument)["weights"]
    except (AttributeError, KeyError) as error:
        return type(error).__name__
    return np.asarray(weights.astype(float) if isinstance(weights, np.ndarray) else weights.double()).tolist()


def read_bias(path):
    with safetensors.safe_open(path, "np") as file:
        return file.get_tensor("bias").tolist()


numbers = [0.5, 1.0, 4.0]
expected = {
    "float32": (numbers, numbers, numbers),
    "float16": (numbers, numbers, numbers),
    "bfloat16": ("KeyError", numbers, numbers),
    "float8_e4m3fn": ("KeyError", "AttributeError", numbers),
    "float8_e5m2": ("KeyError", "AttributeError", numbers),
    "float8_e4m3fnuz": ("KeyError", "AttributeError", numbers),
    "float8_e5m2fnuz": ("KeyError", "AttributeError", numbers),
    "float8_e8m0fnu": ("KeyError", "AttributeError", "KeyError"),
}
changed = False
for name, row in expected.items():
    arrays = {"bias": np.ones(2, np.float32), "weights": np.array(numbers).astype(getattr(ml_dtypes, name, name))}
    data = safetensors.numpy.save(arrays)
    safetensors.numpy.save_file(arrays, sys.argv[1])
    seen = read(safetensors.numpy.load, data), read(safetensors.numpy.load_file, sys.argv[1]), read(safetensors.torch.load, data)
    print(f"{name}: load {seen[0]}, load_file {seen[1]}, torch.load {seen[2]}")
    changed |= seen != row or read_bias(sys.argv[1]) != [1, 1]
try:
    safetensors.numpy.save({"x": np.ones(2, ml_dtypes.float8_e4m3b11fnuz)})
    changed = True
except safetensors.SafetensorError as error:
    print(f"save of float8_e4m3b11fnuz: {str(error)[:40]}...")
if changed:
    sys.exit("the behaviour has changed")
print("as described: save accepts float8 types that load and load_file do not have")
PYTHON
