#!/usr/bin/env bash
# The dnn module of OpenCV 5 computes a reverse GRU of ONNX forwards, and beyond the lengths of its sequences, without a word.
#
# Expected: the results of ONNX Runtime, or an error: an LSTM with lengths is an error, and a reverse LSTM is right. Seen with opencv-python-headless
# 5.0.0.93 and ONNX Runtime 1.32.0 on a CPU: `direction="reverse"` gives the numbers of "forward", and steps behind the length of a
# sequence are computed, where the standard has zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    opencv-python-headless==5.0.0.93 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON' 2> /dev/null
import sys

import cv2
import numpy as np
import onnxruntime
from onnx import helper, numpy_helper


def both(operation, x, weights, outputs, opset, **attributes):
    """Return the first result of OpenCV and of ONNX Runtime for one operation."""
    names = [f"y{place}" for place in range(len(outputs))]
    node = helper.make_node(operation, ["x", *(f"w{i}" for i in range(len(weights)))], names, **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)
        for name, shape in zip(["x", *names], [x.shape, *outputs])
    ]
    kept = [numpy_helper.from_array(one, f"w{place}") for place, one in enumerate(weights)]
    graph = helper.make_graph([node], "g", values[:1], values[1:], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
    net.setInput(x, "x")
    found = net.forward(), onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    return [np.round(one.ravel().astype(float), 3).tolist() for one in found]


weights = [np.full((1, 3, 1), 0.5, np.float32)] * 2 + [np.zeros((1, 6), np.float32)]
steps, ones = np.array([1, 2, 3], np.float32).reshape(3, 1, 1), np.ones((3, 2, 1), np.float32)
shapes = [(3, 1, 1, 1), (1, 1, 1)], [(3, 1, 2, 1), (1, 2, 1)]
lengths = np.array([3, 1], np.int32)
seen = {
    "forward": both("GRU", steps, weights, shapes[0], 14, hidden_size=1),
    "reverse": both("GRU", steps, weights, shapes[0], 14, hidden_size=1, direction="reverse"),
    "lengths 3 and 1": both("GRU", ones, [*weights, lengths], shapes[1], 14, hidden_size=1),
}
known = {
    "forward": ([0.174, 0.329, 0.424], [0.174, 0.329, 0.424]),
    "reverse": ([0.174, 0.329, 0.424], [0.397, 0.322, 0.165]),
    "lengths 3 and 1": ([0.174, 0.174, 0.293, 0.293, 0.376, 0.376], [0.174, 0.174, 0.293, 0, 0.376, 0]),
}
same = True
for name, (opencv, reference) in seen.items():
    print(f"{name}: OpenCV {opencv}, ONNX Runtime {reference}")
    same &= all(np.allclose(one, two, atol=0.002) for one, two in zip((opencv, reference), known[name]))
print("as known" if same else f"expected {known}")
sys.exit(0 if same else 1)
PYTHON
