#!/usr/bin/env bash
# ONNX's reference computes RNN, GRU and LSTM without their sequence_lens and clip, and says nothing.
#
# Expected: steps behind the length of a sequence are zero and its last state is that of its last step, as the specification and ONNX Runtime
# have it, or an error. Seen with onnx 1.23.2 and ONNX Runtime 1.32.0: the reference takes both arguments and drops them, so a sequence of one
# step has the state of four, and with a clip of 0.1 the state of an RNN is 0.96 in place of 0.10.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS = 4


def last_state(operator, length=STEPS, **attributes):
    """Return the last state of a network with weights of one on ones, by ONNX Runtime and by the reference."""
    x, gates = np.ones((STEPS, 1, 1), np.float32), GATES[operator]
    constants = {"w": np.ones((1, gates, 1), np.float32), "r": np.ones((1, gates, 1), np.float32)}
    constants["lengths"] = np.array([length], np.int32)
    node = helper.make_node(operator, ["x", "w", "r", "", "lengths"], ["", "h"], hidden_size=1, **attributes)
    operand = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, (1, 1, 1))
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", [operand], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0]
    return [round(float(y.item()), 4) for y in results]


same = True
for operator in GATES:
    plain, short, clipped = last_state(operator), last_state(operator, 1), last_state(operator, clip=0.1)
    print(f"{operator:4}  four steps {plain}  length 1 {short}  clip 0.1 {clipped}  (ONNX Runtime, reference)")
    same &= plain[0] == plain[1] == short[1] == clipped[1]
    same &= short[0] != plain[0] != clipped[0]
sys.exit(0 if same else "changed")
PYTHON
