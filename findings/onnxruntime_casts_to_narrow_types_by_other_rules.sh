#!/usr/bin/env bash
# ONNX Runtime's Cast rounds to four-bit integers and truncates to eight-bit ones; without saturation, some overflows to float8 stay finite.
#
# Expected: one rule for integers, truncation as in onnx's reference evaluator; with saturate=0, numbers beyond float8_e4m3fn are NaN and those beyond
# float8_e5m2 infinite. Seen with onnxruntime 1.32.0, onnx 1.23.2 and NumPy 2.4.6 on a CPU: 2.5 is 2 in int8 and 3 in int4; 7.5 is 7 in int8
# and, rounded to 8 and wrapped, -8 in int4; -0.5 is 0 in uint8 and 15 in uint4. In float8_e4m3fn, 470 and 500 are NaN and 480 is 448. In
# float8_e5m2, 61440 is NaN and 65536 is infinite. QuantizeLinear with saturate=0 does the same.
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

inf, nan = np.inf, np.nan
integers = (2.5, 7.5, -0.5, -2.5)
expected = {
    "INT8": dict(zip(integers, (2.0, 7.0, 0.0, -2.0))),
    "INT4": dict(zip(integers, (3.0, -8.0, -1.0, -3.0))),
    "UINT8": dict(zip(integers, (2.0, 7.0, 0.0, 254.0))),
    "UINT4": dict(zip(integers, (3.0, 8.0, 15.0, 13.0))),
    "FLOAT8E4M3FN": {448.0: 448.0, 470.0: nan, 480.0: 448.0, 500.0: nan, 1e9: nan},
    "FLOAT8E5M2": {57344.0: 57344.0, 61440.0: nan, 65000.0: nan, 65536.0: inf, 1e9: inf},
}
changed = False
for name, row in expected.items():
    x = np.array(list(row), np.float32)
    options = {"saturate": 0} if name.startswith("FLOAT8") else {}
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=getattr(TensorProto, name), **options),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = helper.make_graph(nodes, "casts", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    seen = session.run(None, {"x": x})[0].tolist()
    reference = ReferenceEvaluator(model).run(None, {"x": x})[0].tolist()
    print(f"{name}:", ", ".join(f"{a:g} -> {b:g} ({c:g})" for a, b, c in zip(row, seen, reference)))
    changed |= str([value + 0.0 for value in seen]) != str(list(row.values()))
print("in parentheses: the reference evaluator")
if changed:
    sys.exit("the behaviour has changed")
print("as described: four bits are rounded, eight bits truncated")
PYTHON
