#!/usr/bin/env bash
# tract's GlobalLpPool divides by the number of pixels before the root, so the norm of an image does not grow with it; Softplus of 89 is infinite.
#
# Expected: (sum of |x|**p)**(1 / p) as in ONNX Runtime, 6 for four pixels of 3 and p=2, and log(1 + exp(89)) = 89. Seen with tract 0.23.9 and
# ONNX Runtime 1.32.0: the norm is 3 for every number of pixels and every p, and softplus overflows where exp does. An image of one pixel agrees.
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
from onnx import helper

PATH = sys.argv[1]


def computed(operator, x, **attributes):
    """Return the first number of the result by ONNX Runtime and by tract."""
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    operand = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * x.ndim)
    graph = helper.make_graph([node], "g", [operand], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, PATH)
    (runtime,) = onnxruntime.InferenceSession(PATH, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = tract.onnx().load(PATH).into_model().into_runnable().run([x])
    return round(float(runtime.flat[0]), 3), round(float(found.to_numpy().flat[0]), 3)


norms = {
    (p, pixels): computed("GlobalLpPool", np.full((1, 1, 1, pixels), 3, np.float32), p=p)
    for p in (1, 2, 3)
    for pixels in (1, 4, 9)
}
for (p, pixels), values in norms.items():
    print(f"GlobalLpPool p={p} of {pixels} pixels of 3  ONNX Runtime, tract: {values}")
softplus = {x: computed("Softplus", np.array([x], np.float32)) for x in (20, 88, 89)}
for x, values in softplus.items():
    print(f"Softplus of {x}  ONNX Runtime, tract: {values}")
same = all(values == (round(3 * pixels ** (1 / p), 3), 3.0) for (p, pixels), values in norms.items())
same &= softplus == {20: (20, 20), 88: (88, 88), 89: (89, float("inf"))}
sys.exit(0 if same else "changed")
PYTHON
