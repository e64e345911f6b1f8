#!/usr/bin/env bash
# ONNX Runtime reads an array of the other byte order as if it had the machine's byte order.
#
# Expected: the values of the array, because transposed and strided arrays are also copied, or an error, as onnx.numpy_helper raises for
# this array. Seen with onnxruntime 1.32.0, onnx 1.23.2 and NumPy 2.4.6 on little-endian Linux: session.run and OrtValue accept a
# big-endian array as a tensor of the right type, and 1, 2, 3 arrive as 4.6e-41, 9.0e-44, 2.3e-41. Such arrays come from np.load, HDF5 files
# and network formats. NumPy computes with them like with any other.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node("Identity", ["x"], ["y"])
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
model = helper.make_model(
    helper.make_graph([node], "identity", [x], [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
reversed_view = np.array([3, 2, 1], np.float32)[::-1]
big = np.array([1, 2, 3], ">f4")
swapped = np.frombuffer(big.tobytes(), np.float32)
results = {
    "run, reversed view": session.run(None, {"x": reversed_view})[0],
    "run, big-endian": session.run(None, {"x": big})[0],
    "OrtValue, big-endian": onnxruntime.OrtValue.ortvalue_from_numpy(big).numpy(),
}
for label, result in results.items():
    print(f"{label}: {result}")
try:
    numpy_helper.from_array(big)
    rejected = False
except ValueError as error:
    rejected = True
    print(f"onnx.numpy_helper, big-endian: {type(error).__name__}")
right, *wrong = results.values()
if not rejected or right.tolist() != [1, 2, 3] or any(result.tolist() != swapped.tolist() for result in wrong):
    sys.exit("the behaviour has changed")
print("as described: ONNX Runtime swaps no bytes and raises no error")
PYTHON
