#!/usr/bin/env bash
# OpenVINO's CPU device saturates 8-bit integers, wraps 16-bit ones, and divides and sums int32 numbers in float32.
#
# Expected: one rule for integer overflow, that of Model.evaluate of the same model, which wraps around, and exact results within the type.
# Seen with openvino 2026.4.1 and NumPy 2.4.6 (x86-64 Linux, precision hint f32): 200 + 100 is 255 in uint8, so the mean of 200 and 101 is 127,
# which is not 150. In int32, 16777217 / 1 is 16777216, 2147483647 / 1 is negative, and the sum of 16777217
# and 1 is 16777216; Add is exact. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 openvino==2026.4.1
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def run(function, dtype, *values):
    arrays = [np.array([value] if np.isscalar(value) else value, dtype) for value in values]
    parameters = [ops.parameter(array.shape, dtype) for array in arrays]
    model = ov.Model([function(*parameters)], parameters)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(arrays)[0]
    output = ov.Tensor(np.zeros(compiled.shape, compiled.dtype))
    try:
        model.evaluate([output], [ov.Tensor(array) for array in arrays])
        evaluated = int(output.data.ravel()[0])
    except RuntimeError:
        evaluated = None
    return int(compiled.ravel()[0]), evaluated


def total(x):
    return ops.reduce_sum(x, ops.constant(np.array([0])))


def mean(x):
    return ops.reduce_mean(x, ops.constant(np.array([0])))


rows = {
    "uint8 200 + 100": (run(ops.add, np.uint8, 200, 100), (255, 44)),
    "int8 100 + 100": (run(ops.add, np.int8, 100, 100), (127, -56)),
    "int16 30000 + 30000": (run(ops.add, np.int16, 30000, 30000), (-5536, -5536)),
    "uint8 mean of 200, 101": (run(mean, np.uint8, [200, 101]), (127, None)),
    "int32 16777217 + 1": (run(ops.add, np.int32, 16777217, 1), (16777218, 16777218)),
    "int32 sum of 16777217, 1": (run(total, np.int32, [16777217, 1]), (16777216, 16777218)),
    "int32 16777217 / 1": (run(ops.divide, np.int32, 16777217, 1), (16777216, 16777217)),
    "int32 2147483647 / 1": (run(ops.divide, np.int32, 2147483647, 1), (-2147483648, 2147483647)),
}
for name, ((compiled, evaluated), _) in rows.items():
    print(f"{name}: compiled {compiled}, Model.evaluate {'not supported' if evaluated is None else evaluated}")
if any(seen != expected for seen, expected in rows.values()):
    sys.exit("the behaviour has changed")
print("as described: the mean of 200 and 101 is 127")
PYTHON
