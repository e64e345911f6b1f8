#!/usr/bin/env bash
# onnx2torch returns the transpose of ONNX's NonZero, 3 x 2 in place of 2 x 3, and ignores attributes of IsInf, ConvTranspose and Resize.
#
# Expected: the results of the model, or the NotImplementedError that onnx2torch raises for other attributes. Seen with onnx2torch 1.5.15, torch
# 2.13.0, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 on a CPU: NonZero is torch.nonzero, which has one row for each element, and ONNX has
# one row for each axis. IsInf finds both infinities, whichever detect_negative and detect_positive select. ConvTranspose returns nine elements
# for an output_shape of 6. Resize with asymmetric coordinates uses half_pixel coordinates. A model that gathers the first row of NonZero, to
# get the positions along the first axis, reads the position of one element.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 torch==2.13.0
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps onnx2torch==1.5.15
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import logging
import sys
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import torch

# Two operators that are not used here need torchvision, whose wheels fit one build of torch only.
sys.modules["torchvision"] = sys.modules["torchvision.ops"] = mock.MagicMock()

import onnx2torch

logging.disable(logging.CRITICAL)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def results(text, x):
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["": 13]> {text}')
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    converted = onnx2torch.convert(model).eval()
    with torch.no_grad():
        found = session.run(None, {"x": x})[0], converted(torch.from_numpy(x)).numpy()
    return [y.squeeze().tolist() for y in found]


inf = float("inf")
table = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
signs = np.array([inf, -inf, 1], np.float32)
line = np.array([[[1, 2, 3, 4]]], np.float32)
nonzero = "g (float[2, 3] x) => (int64[2, n] y) { y = NonZero(x) }"
positive = "g (float[3] x) => (bool[3] y) { y = IsInf <detect_negative = 0> (x) }"
transposed = """g (float[1, 1, 4] x) => (float[1, 1, 6] y) <float[1, 1, 3] w = {1, 10, 100}> {
    y = ConvTranspose <strides = [2], output_shape = [6]> (x, w)
}"""
resized = """g (float[1, 1, 4] x) => (float[1, 1, 8] y) <float[3] scales = {1, 1, 2}> {
    y = Resize <mode = "linear", coordinate_transformation_mode = "MODE"> (x, , scales)
}"""
half = [1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4]
full = [1, 10, 102, 20, 203, 30, 304, 40, 400]
rows = {
    "NonZero": (nonzero, table, [[0, 0, 1], [0, 2, 1]], [[0, 0], [0, 2], [1, 1]]),
    "IsInf, positive only": (positive, signs, [True, False, False], [True, True, False]),
    "ConvTranspose, output_shape 6": (transposed, line, full[2:8], full),
    "Resize, half_pixel": (resized.replace("MODE", "half_pixel"), line, half, half),
    "Resize, asymmetric": (resized.replace("MODE", "asymmetric"), line, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4], half),
}
changed = False
for name, (text, x, *expected) in rows.items():
    seen = results(text, x)
    print(f"{name}: ONNX Runtime {seen[0]}, onnx2torch {seen[1]}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: NonZero is transposed, and attributes are ignored")
PYTHON
