#!/usr/bin/env bash
# ReduceMax and GlobalMaxPool of ONNX Runtime keep or lose a NaN by its position.
#
# Expected: the maximum is NaN if an element is NaN, as for the operator Max, for NumPy and for the ReduceMax of onnx's reference evaluator,
# or NaN is always ignored. Seen with onnxruntime 1.32.0, onnx 1.23.2 and NumPy 2.4.6 on an x86-64 CPU: ReduceMax of four elements returns
# NaN only if the first one is NaN. GlobalMaxPool returns NaN only if the last one is NaN, so the two operators disagree about the same
# data. A maximum cannot be used to detect NaN then.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def model(operator, *names, **attributes):
    node = helper.make_node(operator, names, ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4]) for name in names]
    graph = helper.make_graph([node], operator, inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def positions_that_give_nan(proto, run):
    found = []
    for position in range(4):
        x = np.array([[[1, 2, 3, 4]]], np.float32)
        x[..., position] = np.nan
        values = {"x": x, "zero": np.zeros_like(x)}
        result = run(None, {i.name: values[i.name] for i in proto.graph.input})[0]
        if np.isnan(result).any():
            found.append(position)
    return found


models = {"Max": model("Max", "x", "zero")} | {name: model(name, "x") for name in ("ReduceMax", "GlobalMaxPool")}
seen = {}
for name, proto in models.items():
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    seen[name] = positions_that_give_nan(proto, session.run), positions_that_give_nan(proto, ReferenceEvaluator(proto).run)
    print(f"{name} is NaN for a NaN at: onnxruntime {seen[name][0]}, reference {seen[name][1]}")
every = [0, 1, 2, 3]
if seen != {"Max": (every, every), "ReduceMax": ([0], every), "GlobalMaxPool": ([3], every)}:
    sys.exit("the behaviour has changed")
print("as described: the position of a NaN decides")
PYTHON
