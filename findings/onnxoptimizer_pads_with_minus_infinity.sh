#!/usr/bin/env bash
# onnxoptimizer joins a padding by zeros with a MaxPool, whose padding is -infinity, so that negative maxima appear at the border.
#
# Expected: the results of the model: 0, -1, -2, -3, 0 for the elements -1 to -4 with a zero on both sides and windows of two. Seen with
# onnxoptimizer 0.4.2, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6, with the default passes: Pad is removed, its amounts become pads of
# MaxPool, and the maxima are -1, -1, -2, -3, -4. Of two Reshape nodes the second remains; its 0 stands for a dimension of its input, which is
# another tensor now, and the output has the shape (2, 3) instead of (3, 2). Initializers 0.0 and -0.0 become one, so that 1 / -0.0 is inf.
# A network whose padding is a separate node has other values at the border of each image after the optimization.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxoptimizer==0.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def results(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [(y.shape, y.ravel().tolist()) for y in session.run(None, {"x": x})]


padded = """
g (float[1, 1, 4] x) => (float[1, 1, 5] y) <int64[6] amounts = {0, 0, 1, 0, 0, 1}> {
    wider = Pad(x, amounts)
    y = POOL <kernel_shape = [2]> (wider)
}"""
divided = """
g (float[1] x) => (float[1] y, float[1] z) <float zero = {0.0}, float negative = {-0.0}> {
    y = Div(x, zero)
    z = Div(x, negative)
}"""
reshaped = """
g (float[2, 3] x) => (float[3, 2] y) <int64[3] first = {3, 1, 2}, int64[2] second = {0, -1}> {
    t = Reshape(x, first)
    y = Reshape(t, second)
}"""
inf = float("inf")
x = -np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4)
six = np.arange(6, dtype=np.float32).reshape(2, 3)
one, five = (1,), (1, 1, 5)
averages = [(five, [-0.5, -1.5, -2.5, -3.5, -2])]
rows = {
    "Pad, MaxPool": (padded.replace("POOL", "MaxPool"), x, [(five, [0, -1, -2, -3, 0])], [(five, [-1, -1, -2, -3, -4])]),
    "Pad, AveragePool": (padded.replace("POOL", "AveragePool"), x, averages, averages),
    "Reshape, Reshape": (reshaped, six, [((3, 2), list(range(6)))], [((2, 3), list(range(6)))]),
    "1 / 0.0, 1 / -0.0": (divided, np.ones(1, np.float32), [(one, [inf]), (one, [-inf])], [(one, [inf]), (one, [inf])]),
}
changed = False
for name, (text, x, before, after) in rows.items():
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]>' + text)
    onnx.checker.check_model(model, full_check=True)
    optimized = onnxoptimizer.optimize(model)
    nodes = [node.op_type for node in optimized.graph.node]
    seen = results(model, x), results(optimized, x)
    print(f"{name}: {seen[0]}, after the optimization {seen[1]} {nodes}")
    changed |= seen != (before, after)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the optimization changes maxima, a shape and a sign")
PYTHON
