#!/usr/bin/env bash
# onnxslim, onnxsim and onnxoptimizer merge two random nodes into one, so that the difference of two independent noises is 0.
#
# Expected: both nodes stay, because ONNX generates a new seed for a node that has none. Seen with onnxslim 0.1.98, onnxsim 0.8.1, onnxoptimizer
# 0.4.2, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6, with the default passes: the elimination of common subexpressions takes nodes with the
# same inputs and attributes for the same value. RandomNormalLike, Bernoulli, Multinomial and Dropout in training mode are merged by all three
# tools. RandomUniform, which has no inputs, is merged by onnxsim and onnxoptimizer. Nodes with different seeds stay. The noises of two steps of
# a sampler, or the masks of two dropouts of one tensor, are equal afterwards. A test of a random model by its outputs does not find this.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxslim==0.1.98 onnxsim==0.8.1 onnxoptimizer==0.4.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxsim
import onnxslim

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
tools = {
    "onnxslim": onnxslim.slim,
    "onnxsim": lambda model: onnxsim.simplify(model)[0],
    "onnxoptimizer": onnxoptimizer.optimize,
}


def spread(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return float(np.abs(session.run(None, {"x": np.full((8, 8), 0.5, np.float32)})[0]).max())


seeded = "RandomNormalLike <seed = 1.0> (x)", "RandomNormalLike <seed = 2.0> (x)"
rows = {
    "RandomNormalLike": ("RandomNormalLike(x)", "RandomNormalLike(x)", set(tools)),
    "Bernoulli": ("Bernoulli(x)", "Bernoulli(x)", set(tools)),
    "Multinomial": ("Multinomial <sample_size = 8> (x)", "Multinomial <sample_size = 8> (x)", set(tools)),
    "Dropout": ("Dropout(x, ratio, training)", "Dropout(x, ratio, training)", set(tools)),
    "RandomUniform": ("RandomUniform <shape = [8, 8]> ()", "RandomUniform <shape = [8, 8]> ()", {"onnxsim", "onnxoptimizer"}),
    "two seeds": (*seeded, set()),
}
changed = False
for name, (first, second, expected) in rows.items():
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[8, 8] x) => (float[8, 8] y) <float ratio = {{0.5}}, bool training = {{1}}> {{
            a = {first}
            b = {second}
            difference = Sub(a, b)
            number = Cast <to = 1> (difference)
            zero = Sub(x, x)
            y = Add(number, zero)
        }}"""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    seen = {tool: spread(function(onnx.parser.parse_model(text))) for tool, function in tools.items()}
    after = ", ".join(f"{tool} {value:.3g}" for tool, value in seen.items())
    original = spread(model)
    print(f"{name}: largest difference {original:.3g}, after {after}")
    changed |= original == 0 or {tool for tool, value in seen.items() if value == 0} != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: two noises become one")
PYTHON
