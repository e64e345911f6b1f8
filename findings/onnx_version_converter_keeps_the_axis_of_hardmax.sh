#!/usr/bin/env bash
# ONNX's version converter keeps the results of Softmax from opset 12 to 13, and changes those of Hardmax, whose definition changed likewise.
#
# Expected: Hardmax over all axes from the default axis 1 on, as before the conversion, with Flatten and Reshape around it as for Softmax and
# LogSoftmax, or an error. Seen with onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6: up to opset 12, the three operators work on a matrix of
# the axes before and after `axis`; from 13 on, on one axis, the last one by default. The converter leaves Hardmax as it is, so that each image
# has one 1 before and three after. Upsample and Resize get the half_pixel coordinates of opset 11 in place of the asymmetric ones of
# opset 10, which issue 8480 of ONNX reports for Resize. Other operators whose definition changed are right: ReduceSum, Clip, Pad,
# Dropout, BatchNormalization and TopK. A model that is converted for a newer runtime has other results, without a warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import version_converter

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def results(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


cube = "g (float[2, 3, 2] x) => (float[2, 3, 2] y)"
row = "g (float[1, 1, 1, 4] x) => (float[1, 1, 1, 8] y)"
scales = "<float[4] scales = {1, 1, 1, 2}>"
x = np.array([[[1, 2], [4, 3], [0, 1]], [[7, 5], [6, 8], [2, 3]]], np.float32)
line = np.array([0, 4, 8, 12], np.float32).reshape(1, 1, 1, 4)
rows = (
    ("Softmax", f"{cube} {{ y = Softmax(x) }}", 12, 13, x, True),
    ("LogSoftmax", f"{cube} {{ y = LogSoftmax(x) }}", 12, 13, x, True),
    ("Hardmax", f"{cube} {{ y = Hardmax(x) }}", 12, 13, x, False),
    ("Hardmax of the last axis", f"{cube} {{ y = Hardmax <axis = 2> (x) }}", 12, 13, x, True),
    ("ReduceSum", "g (float[2, 3, 2] x) => (float[2, 2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }", 12, 13, x, True),
    ("Upsample", f'{row} {scales} {{ y = Upsample <mode = "linear"> (x, scales) }}', 9, 11, line, False),
    ("Resize", f'{row} {scales} {{ y = Resize <mode = "linear"> (x, scales) }}', 10, 11, line, False),
)
changed = False
for name, text, old, new, data, same in rows:
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["": {old}]> {text}')
    onnx.checker.check_model(model, full_check=True)
    converted = version_converter.convert_version(model, new)
    onnx.checker.check_model(converted, full_check=True)
    before, after = results(model, data), results(converted, data)
    nodes = [node.op_type for node in converted.graph.node if node.op_type != "Constant"]
    print(f"{name}, opset {old} to {new}: {'same' if same else [before.ravel().tolist(), after.ravel().tolist()]} {nodes}")
    changed |= np.allclose(before, after) != same
    if name == "Hardmax":
        changed |= (before.sum((1, 2)).tolist(), after.sum((1, 2)).tolist()) != ([1, 1], [3, 3])
if changed:
    sys.exit("the behaviour has changed")
print("as described: Hardmax has other results after the conversion")
PYTHON
