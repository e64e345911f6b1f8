#!/usr/bin/env bash
# ONNX's reference returns three maxima for auto_pad SAME_LOWER where the formula of the specification, SAME_UPPER and ONNX Runtime have four.
#
# Expected: ceil(7 / 2) = 4 windows of three elements with stride 2, for SAME_LOWER as for SAME_UPPER. Seen with onnx 1.23.2 and ONNX Runtime 1.32.0: the reference
# begins its windows without padding, drops the last one, and so returns 3, 5, 7 for the numbers 1 to 7. Averages with the same attributes
# are right in both.
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
from onnx import helper
from onnx.reference import ReferenceEvaluator


def computed(operator, *operands, **attributes):
    """Return the results of ONNX Runtime and of the reference for a model of one node."""
    names = [f"x{place}" for place in range(len(operands))]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name, x in zip(names, operands)]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * operands[0].ndim)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    given = dict(zip(names, operands))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, given)[0], ReferenceEvaluator(model).run(None, given)[0]
    return [[round(float(value), 4) for value in y.ravel()] for y in results]


x = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7)
rows = {
    f"{operator} {padding}": computed(operator, x, kernel_shape=[3], strides=[2], auto_pad=padding)
    for operator in ("MaxPool", "AveragePool")
    for padding in ("SAME_UPPER", "SAME_LOWER")
}
for name, (runtime, reference) in rows.items():
    print(f"{name:24} ONNX Runtime {runtime}  reference {reference}")
different = rows.pop("MaxPool SAME_LOWER")
same = different == [[2, 4, 6, 7], [3, 5, 7]] and all(runtime == reference for runtime, reference in rows.values())
sys.exit(0 if same else "changed")
PYTHON
