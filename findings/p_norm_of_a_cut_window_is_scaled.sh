#!/usr/bin/env bash
# The 1-norm of 5 and 6 is 16.5 in PyTorch's lp_pool and in ONNX's reference, if a window of three elements is cut by the end of the data.
#
# Expected: 11, the sum, as in ONNX Runtime: a norm is not an average. Seen with torch 2.13.0, onnx 1.23.2 and ONNX Runtime 1.32.0: two of the three scale the
# sum of a window that ceil_mode lets out of the data by 3 / 2, as if the missing elements were like the others. A window that is cut by
# padding is not scaled. A model that is exported changes its results at the border.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 torch==2.13.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator
import torch


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
cut = computed("LpPool", x, kernel_shape=[3], strides=[2], p=1, ceil_mode=1)
padded = computed("LpPool", x, kernel_shape=[3], strides=[2], p=1, pads=[0, 1])
by_torch = torch.nn.functional.lp_pool1d(torch.from_numpy(x), 1, 3, 2, ceil_mode=True).ravel().tolist()
print("cut by the end   ONNX Runtime", cut[0], " reference", cut[1], " torch", by_torch)
print("cut by padding   ONNX Runtime", padded[0], " reference", padded[1])
same = cut == [[6, 12, 11], [6, 12, 16.5]] and by_torch == [6, 12, 16.5] and padded == [[6, 12, 11]] * 2
sys.exit(0 if same else "changed")
PYTHON
