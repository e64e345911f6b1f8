#!/usr/bin/env bash
# tract computes an RNN, GRU or LSTM of direction "reverse" as the forward network, and drops clip.
#
# Expected: the sequence read from its end, as in ONNX Runtime, or an error. Seen with tract 0.23.9 and ONNX Runtime 1.32.0: the results of
# "reverse" are those of "forward", although "bidirectional" has both directions right, and a clip of 0.1 changes nothing. A model that was
# exported as two networks, one for each direction, gives other numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 tract==0.23.9
"$work/venv/bin/python" -W ignore - "$work/model.onnx" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import tract
from onnx import helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
PATH = sys.argv[1]


def states(operator, direction, **attributes):
    """Return the states of each step for the sequence 1, 0, 0 and weights of one, by ONNX Runtime and by tract."""
    directions, gates = 1 + (direction == "bidirectional"), GATES[operator]
    x = np.array([1, 0, 0], np.float32).reshape(3, 1, 1)
    node = helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=1, direction=direction, **attributes)
    operand = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, directions, 1, 1))
    weights = [numpy_helper.from_array(np.ones((directions, gates, 1), np.float32), name) for name in "wr"]
    graph = helper.make_graph([node], "g", [operand], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, PATH)
    (runtime,) = onnxruntime.InferenceSession(PATH, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = tract.onnx().load(PATH).into_model().into_runnable().run([x])
    return [[round(float(state), 4) for state in y.ravel()] for y in (runtime, found.to_numpy())]


same = True
for operator in GATES:
    forward, reverse = states(operator, "forward"), states(operator, "reverse")
    both, clipped = states(operator, "bidirectional"), states(operator, "forward", clip=0.1)
    print(f"{operator:4}  forward {forward}  reverse {reverse}  clip 0.1 {clipped}  (ONNX Runtime, tract)")
    same &= forward[0] == forward[1] == reverse[1] == clipped[1] and both[0] == both[1]
    same &= reverse[0] != forward[0] != clipped[0]
sys.exit(0 if same else "changed")
PYTHON
