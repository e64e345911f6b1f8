#!/usr/bin/env bash
# tinygrad's ONNX runner takes elements 1 to 3 of five as their centre, and quantizes 1.5 to 1 and 2.5 to 3.
#
# Expected: 2, 3 and 4, as in ONNX's CenterCropPad, and the even numbers 2 and 2, as in QuantizeLinear. Seen with tinygrad 0.14.0 (device PYTHON),
# onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6: a crop from an odd size to an odd size starts one element early; crops of other sizes and
# paddings are right. QuantizeLinear to uint8 rounds 0.5 and 1.5 down, and 2.5, 3.5 and 254.5 up; to int8 it rounds ties to even. The function
# ReduceLogSumExp of 100 and 100 is infinite in place of 100.69. A model that crops its input sees an image that is displaced by a pixel, and a
# quantized model differs in the last bit from other runtimes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 tinygrad==0.14.0
XDG_CACHE_HOME="$work/cache" DEV=PYTHON "$work/venv/bin/python" - "$work/model.onnx" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def results(text, x):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, sys.argv[1])
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})[0], OnnxRunner(sys.argv[1])({"x": Tensor(x)})["y"].numpy()
    return [y.round(3).tolist() for y in found]


def crop(size, new):
    return f"g (float[{size}] x) => (float[{new}] y) <int64[1] size = {{{new}}}> {{ y = CenterCropPad(x, size) }}"


def quantize(dtype):
    return f"g (float[6] x) => ({dtype}[6] y) <float s = {{0.5}}, {dtype} z = {{0}}> {{ y = QuantizeLinear(x, s, z) }}"


five, six = np.arange(1, 6, dtype=np.float32), np.arange(1, 7, dtype=np.float32)
ties = np.array([0.25, 0.75, 1.25, 1.75, 0.3, 127.25], np.float32)
negative = np.array([0.25, 0.75, 1.25, -0.75, -1.25, 0.3], np.float32)
logsumexp = "g (float[2] x) => (float[1] y) { y = ReduceLogSumExp(x) }"
rows = {
    "5 to 3": (crop(5, 3), five, [2, 3, 4], [1, 2, 3]),
    "5 to 1": (crop(5, 1), five, [3], [2]),
    "5 to 4": (crop(5, 4), five, [1, 2, 3, 4], [1, 2, 3, 4]),
    "6 to 4": (crop(6, 4), six, [2, 3, 4, 5], [2, 3, 4, 5]),
    "5 to 8": (crop(5, 8), five, [0, 1, 2, 3, 4, 5, 0, 0], [0, 1, 2, 3, 4, 5, 0, 0]),
    "uint8": (quantize("uint8"), ties, [0, 2, 2, 4, 1, 254], [0, 1, 3, 4, 1, 255]),
    "int8": (quantize("int8"), negative, [0, 2, 2, -2, -2, 1], [0, 2, 2, -2, -2, 1]),
    "ReduceLogSumExp": (logsumexp, np.array([100, 100], np.float32), [100.693], [float("inf")]),
}
changed = False
for name, (text, x, *expected) in rows.items():
    seen = results(text, x)
    print(f"{name}: ONNX Runtime {seen[0]}, tinygrad {seen[1]}")
    changed |= not all(np.allclose(y, wanted, atol=2e-3) for y, wanted in zip(seen, expected))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the centre and ties to uint8 differ")
PYTHON
