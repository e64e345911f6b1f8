#!/usr/bin/env bash
# With ceil_mode, ONNX's reference evaluator averages other windows than those that start at the padding.
#
# Expected: of 1 to 6, with one element of padding in front, the windows (0, 1, 2), (3, 4, 5) and (6): averages 1, 4, and 6 or 2 for the last one.
# Seen with onnx 1.23.2 and ONNX Runtime 1.32.0: ONNX Runtime returns 1, 4, 6. The reference returns 1/3, 3, 5: it fills up the last window with
# padding, puts half of it in front, and so moves every window by one element; without count_include_pad too. Where windows fit, both agree.
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


x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6)
window = {"kernel_shape": [3], "strides": [3], "pads": [1, 0]}
rows = {
    "ceil_mode and count_include_pad": computed("AveragePool", x, ceil_mode=1, count_include_pad=1, **window),
    "ceil_mode alone": computed("AveragePool", x, ceil_mode=1, **window),
    "windows that fit": computed("AveragePool", x, ceil_mode=1, count_include_pad=1, kernel_shape=[3], strides=[3]),
}
for name, (runtime, reference) in rows.items():
    print(f"{name:32} ONNX Runtime {runtime}  reference {reference}")
expected = [[[1, 4, 6], [0.3333, 3, 5]], [[1.5, 4, 6], [1, 3, 5]], [[2, 5], [2, 5]]]
sys.exit(0 if list(rows.values()) == expected else "changed")
PYTHON
