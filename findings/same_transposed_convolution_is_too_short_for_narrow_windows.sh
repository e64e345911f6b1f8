#!/usr/bin/env bash
# ONNX Runtime and OpenVINO return 7 elements for a transposed convolution of 4 with stride 2 and auto_pad SAME if its window has one element.
#
# Expected: the length times the stride, 8, which the specification defines for SAME and the reference has; or an error.
# Seen with onnx 1.23.2, ONNX Runtime 1.32.0 and OpenVINO 2026.4.1: 8 for windows of 2 and 3, and 7 for a window of 1, where the output would need
# padding at one end. ONNX's shape inference has 7 as well. A decoder that doubles its images returns odd ones.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(4)


def lengths(window, padding):
    """Return the lengths of the result by shape inference, the reference, ONNX Runtime and OpenVINO."""
    x, w = np.ones((1, 1, 4), np.float32), numpy_helper.from_array(np.ones((1, 1, window), np.float32), "w")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2], auto_pad=padding)
    operand = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, None])
    graph = helper.make_graph([node], "g", [operand], [result], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    inferred = shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape.dim[2].dim_value
    (reference,) = ReferenceEvaluator(model).run(None, {"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (runtime,) = session.run(None, {"x": x})
    compiled = openvino.compile_model(openvino.Core().read_model(model.SerializeToString()), "CPU")
    return [inferred, reference.shape[2], runtime.shape[2], compiled(x)[0].shape[2]]


same = True
for padding in ("SAME_UPPER", "SAME_LOWER"):
    for window in (1, 2, 3):
        found = lengths(window, padding)
        print(f"{padding} window {window}  shape inference, reference, ONNX Runtime, OpenVINO: {found}")
        same &= found == ([7, 8, 7, 7] if window == 1 else [8] * 4)
sys.exit(0 if same else "changed")
PYTHON
