#!/usr/bin/env bash
# No runtime loads the float16 model that onnxconverter-common writes if the model has a Cast to float, a constant in value_float, or an EyeLike.
#
# Expected: a model that ONNX Runtime runs with the result 6, 2 * 3, because the converter changes the types of all tensors that are float32. Seen with
# onnxconverter-common 1.16.0, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30, with and without keep_io_types: the
# type of the result becomes float16, and the attribute that names it stays float32, so that onnx.checker finds the model invalid and
# ONNX Runtime raises a type error while it loads it. Constants in initializers, or in the attribute "value" of a node, are converted. A comparison, whose
# result is cast to float and multiplied, is how masks are exported. A node in op_block_list is kept in float32, and then the model loads.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxconverter-common==1.16.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxconverter_common import float16

names = ("onnxconverter-common", "onnx", "onnxruntime", "numpy")
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
three = numpy_helper.from_array(np.array([[3]], np.float32))
sources = {
    "Cast": helper.make_node("Cast", ["i"], ["f"], name="source", to=TensorProto.FLOAT),
    "Constant, value_float": helper.make_node("Constant", [], ["f"], name="source", value_float=3.0),
    "Constant, value": helper.make_node("Constant", [], ["f"], name="source", value=three),
    "EyeLike": helper.make_node("EyeLike", ["i"], ["f"], name="source", dtype=TensorProto.FLOAT),
}


def run(source, keep, **options):
    """Return 2 times the result of a node after the conversion, or the error."""
    info = helper.make_tensor_value_info
    nodes = [source, helper.make_node("Mul", ["f", "x"], ["y"], name="product")]
    inputs = [info("x", TensorProto.FLOAT, [1, 1]), info("i", TensorProto.INT64, [1, 1])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, [1, 1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    converted = float16.convert_float_to_float16(model, keep_io_types=keep, **options)
    try:
        onnx.checker.check_model(converted, full_check=True)
        valid = "valid"
    except Exception:
        valid = "invalid"
    feeds = {"x": np.array([[2]], np.float32 if keep else np.float16), "i": np.array([[3]])}
    try:
        session = onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
        return valid, float(session.run(None, feeds)[0].item())
    except Exception as error:
        return valid, "Type Error" if "Type Error" in str(error) else type(error).__name__


same = True
for name, source in sources.items():
    seen = [run(source, keep) for keep in (True, False)]
    print(f"{name}: kept types of inputs {seen[0]}, float16 throughout {seen[1]}")
    same &= seen == [("valid", 6.0) if name == "Constant, value" else ("invalid", "Type Error")] * 2
blocked = run(sources["Cast"], True, op_block_list=["Cast"])
print(f"Cast in op_block_list: {blocked}")
if not same or blocked != ("valid", 6.0):
    sys.exit("the behaviour has changed")
print("as described: the types that nodes name stay float32")
PYTHON
