#!/usr/bin/env bash
# After onnxscript's optimizer, the output of a Relu is -1, and a Clip with the limits 2 and 3 returns 1.
#
# Expected: 0 for a Relu of numbers that a Clip limits to at most -1, and 2 for numbers between 0 and 1 that a second Clip limits to 2 and 3.
# Seen with onnxscript 0.7.2, onnx-ir 1.1.0, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6: the optimizer joins the two nodes to one Clip whose
# minimum is larger than its maximum, which returns the maximum. Constants are folded by ONNX's reference, with results that ONNX Runtime does not
# have: the sum of two int32 numbers 2147483647 is -2 instead of 2147483647. The optimizer is part of PyTorch's export to ONNX.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2 onnx-ir==1.1.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnxscript import optimizer

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def results(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].tolist()


relu = "g (float[3] x) => (float[3] y) <float high = {-1}> { t = Clip(x, , high)  y = Relu(t) }"
clip = """
g (float[3] x) => (float[3] y) <float a = {0}, float b = {1}, float c = {2}, float d = {3}> {
    t = Clip(x, a, b)
    y = Clip(t, c, d)
}"""
wide = "g (float[3] x) => (float[3] y) <float low = {-1}> { t = Clip(x, low)  y = Relu(t) }"
fold = """
g (int64[1] x) => (int64[1] y) <int32[2] a = {2147483647, 2147483647}> {
    s = ReduceSum(a)
    t = Cast <to = 7> (s)
    y = Add(x, t)
}"""
x = np.array([9, -1.5, 0.25], np.float32)
rows = {
    "Relu of Clip to at most -1": (relu, x, [0, 0, 0], [-1, -1, -1]),
    "Clip to 2, 3 of Clip to 0, 1": (clip, x, [2, 2, 2], [1, 1, 1]),
    "Relu of Clip to at least -1": (wide, x, [9, 0, 0.25], [9, 0, 0.25]),
    "sum of two int32 2147483647": (fold, np.zeros(1, np.int64), [2147483647], [-2]),
}
changed = False
for name, (text, x, before, after) in rows.items():
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]>' + text)
    onnx.checker.check_model(model, full_check=True)
    optimized = optimizer.optimize(model)
    nodes = [node.op_type for node in optimized.graph.node]
    seen = results(model, x), results(optimized, x)
    print(f"{name}: {seen[0]}, after the optimization {seen[1]} {nodes}")
    changed |= seen != (before, after)
if changed:
    sys.exit("the behaviour has changed")
print("as described: a Relu returns -1 after the optimization")
PYTHON
