#!/usr/bin/env bash
# Bicubic GridSample with border padding has other values in ONNX's reference than in ONNX Runtime and PyTorch, just outside of the image.
#
# Expected: each of the 16 pixels around a point is moved to the border by itself, as the two implementations do. Seen with onnx 1.23.2, ONNX Runtime
# 1.32.0 and torch 2.13.0: for points up to one pixel outside, the reference differs by a tenth, because it moves the point before it computes the
# weights. Points inside of the image agree, and so do "zeros", "reflection" and the linear mode.
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


x = np.random.default_rng(0).standard_normal((1, 1, 5, 6)).astype(np.float32)
points = {"inside": (0.1, -0.3), "half a pixel outside": (-1.0537, 0.2)}
same = True
for where, point in points.items():
    grid = np.array(point, np.float32).reshape(1, 1, 1, 2)
    for mode, padding in (("cubic", "border"), ("cubic", "zeros"), ("cubic", "reflection"), ("linear", "border")):
        runtime, reference = (row[0] for row in computed("GridSample", x, grid, mode=mode, padding_mode=padding))
        name = {"cubic": "bicubic", "linear": "bilinear"}[mode]
        other = torch.nn.functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), name, padding, False).item()
        print(f"{where:22} {mode:7} {padding:11} ONNX Runtime {runtime:8.4f}  torch {other:8.4f}  reference {reference:8.4f}")
        differs = abs(reference - other) > 1e-2
        same = same and abs(runtime - other) < 1e-3 and differs == (where != "inside" and (mode, padding) == ("cubic", "border"))
sys.exit(0 if same else "changed")
PYTHON
