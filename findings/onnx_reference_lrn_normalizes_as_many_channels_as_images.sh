#!/usr/bin/env bash
# ONNX's reference normalises only the first N channels of N images in LRN; the others keep their values.
#
# Expected: each channel divided by its own sum of squares, as in ONNX Runtime and PyTorch. Seen with onnx 1.23.2 and ONNX Runtime 1.32.0: the reference
# counts channels up to the number of images, so that one image of four channels has three that are divided by the bias alone. A model
# that is checked against the reference with as many images as channels agrees.
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


def normalized(images):
    """Return the channels of the last image of ones, by ONNX Runtime and by the reference."""
    x = np.ones((images, 4, 1, 1), np.float32)
    node = helper.make_node("LRN", ["x"], ["y"], size=1, alpha=3.0, beta=1.0, bias=1.0)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0]
    return [y[-1].ravel().tolist() for y in results]


found = {images: normalized(images) for images in (1, 2, 4)}
for images, (runtime, reference) in found.items():
    print(f"{images} images of ones  ONNX Runtime {runtime}  reference {reference}")
divided = [0.25] * 4  # 1 / (1 + 3 / 1 * 1)
same = all(
    runtime == divided and reference == divided[:images] + [1.0] * (4 - images)
    for images, (runtime, reference) in found.items()
)
sys.exit(0 if same else "changed")
PYTHON
