#!/usr/bin/env bash
# ONNX Runtime's Unique loses numbers, or counts NaN as another number, if its input has a NaN.
#
# Expected: all numbers are in the result, and NaN is there once, as in NumPy and onnx's reference evaluator, or once per occurrence. Seen with
# onnxruntime 1.32.0, onnx 1.23.2 and NumPy 2.4.6 on a CPU: the unique elements of NaN, 2, 1, 2 are NaN alone, with a count of 4. A later NaN
# is absent, and is counted as 2 in one array and as 1 in another. The inverse indices map numbers to NaN and NaN to numbers.
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

nan = np.nan
names = ["unique", "first", "inverse", "counts"]
node = helper.make_node("Unique", ["x"], names, sorted=1)
outputs = [helper.make_tensor_value_info(name, TensorProto.INT64 if i else TensorProto.FLOAT, None) for i, name in enumerate(names)]
graph = helper.make_graph([node], "unique", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])], outputs)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
expected = {
    (3.0, 2.0, 1.0, 2.0): ([1.0, 2.0, 3.0], [2, 1, 0, 1], [1, 2, 1]),
    (nan, 2.0, 1.0, 2.0): ([nan], [0, 0, 0, 0], [4]),
    (2.0, nan, 1.0, 2.0): ([1.0, 2.0], [1, 1, 0, 1], [1, 3]),
    (2.0, 1.0, 2.0, nan): ([1.0, 2.0], [1, 0, 1, 0], [2, 2]),
}
changed = False
for values, row in expected.items():
    x = np.array(values, np.float32)
    seen = [result.tolist() for result in session.run(["unique", "inverse", "counts"], {"x": x})]
    reference = ReferenceEvaluator(model).run(["unique", "counts"], {"x": x})
    print(f"{list(values)}: {seen[0]}, inverse {seen[1]}, counts {seen[2]};", end=" ")
    print(f"reference: {reference[0].tolist()}, counts {reference[1].tolist()}")
    changed |= str(seen) != str(list(row))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the numbers after a NaN are lost")
PYTHON
