#!/usr/bin/env bash
# ONNX Runtime's ReduceSum and Pow of integers use double precision and saturate; its Add and CumSum are exact and wrap around.
#
# Expected: sums of int64 are exact as long as they fit, and overflow in one way in all operators. Seen with onnxruntime 1.32.0, onnx 1.23.2
# and NumPy 2.4.6 on an x86-64 CPU: ReduceSum of 2**53 and 1 is 2**53, where Add gives 2**53 + 1. The sum of two int32 numbers 2**31 - 1 is
# 2**31 - 1 by ReduceSum, and -2 by Add and CumSum. Pow(3, 39) of int64 has wrong last digits. Sums of hashes, of time stamps in
# nanoseconds and of byte counts reach this size.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import helper


def run(operator, *arrays):
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays)
    ]
    node = helper.make_node(operator, names, ["y"])
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(arrays[0].dtype), None)
    graph = helper.make_graph([node], operator, inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return int(session.run(None, dict(zip(names, arrays)))[0].ravel()[-1])


large, top = np.array([2**53, 1]), np.array([2**31 - 1] * 2, np.int32)
axis = np.array([0])
results = {
    "int64 Add of 2**53, 1": (run("Add", large[:1], large[1:]), 2**53 + 1),
    "int64 CumSum of 2**53, 1": (run("CumSum", large, axis.reshape(())), 2**53 + 1),
    "int64 ReduceSum of 2**53, 1": (run("ReduceSum", large, axis), 2**53),
    "int32 Add of 2**31 - 1 twice": (run("Add", top[:1], top[1:]), -2),
    "int32 CumSum of 2**31 - 1 twice": (run("CumSum", top, axis.reshape(())), -2),
    "int32 ReduceSum of 2**31 - 1 twice": (run("ReduceSum", top, axis), 2**31 - 1),
    "int64 Pow(3, 39) - 3**39": (run("Pow", np.array([3]), np.array([39])) - 3**39, -11),
}
for name, (result, _) in results.items():
    print(f"{name}: {result}")
if any(result != expected for result, expected in results.values()):
    sys.exit("the behaviour has changed")
print("as described: ReduceSum differs from Add")
PYTHON
