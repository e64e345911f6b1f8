#!/usr/bin/env bash
# The dnn module of OpenCV 5 loses the deviation of a row in LayerNormalization if its mean is large; InstanceNormalization keeps it.
#
# Expected: -1 and 1 for rows of mean - 1 and mean + 1, whatever the mean is, as both operations give elsewhere. Seen with opencv-python-headless
# 5.0.0.93 and ONNX Runtime 1.32.0 on a CPU: at a mean of 10,000 the elements become -316 and 316, the inverse root of epsilon, because the mean
# of squares minus the square of the mean is 0 in float32. Smaller means change results by less, without a sign of it.
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


def row(mean):
    return np.float32(mean) + np.array([[-1, 1] * 4], np.float32)


ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
seen = {
    f"layer norm, mean {mean}": both("LayerNormalization", row(mean), [ones, zeros], [(1, 8)], 17, axis=-1)
    for mean in (0, 1000, 10000)
}
image = row(10000).reshape(1, 1, 2, 4)
seen["instance norm, mean 10000"] = both("InstanceNormalization", image, [ones[:1], zeros[:1]], [image.shape], 17)
right = [-1.0, 1.0] * 4
known = {name: (right, right) for name in seen}
known["layer norm, mean 10000"] = ([-316.228, 316.228] * 4, right)
same = True
for name, (opencv, reference) in seen.items():
    print(f"{name}: OpenCV {opencv}, ONNX Runtime {reference}")
    same &= all(np.allclose(one, two, atol=0.002) for one, two in zip((opencv, reference), known[name]))
print("as known" if same else f"expected {known}")
sys.exit(0 if same else 1)
PYTHON
