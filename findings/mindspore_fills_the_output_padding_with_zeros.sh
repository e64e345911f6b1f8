#!/usr/bin/env bash
# MindSpore's Conv2dTranspose fills the rows and columns of output_padding with zeros, without the weights and without the bias.
#
# Expected: the values that the transposed convolution has there, as in PyTorch, ONNX Runtime, and as in the gradient of MindSpore's own Conv2d
# with the same weights; output_padding selects the size. Seen with mindspore 2.10.0 and NumPy 1.26.4 (CPU, x86-64 Linux) on
# 2026-11-28: ones of shape 2 x 2 with a kernel of 3 x 3 ones, stride 2 and padding 1 give the last row and column 0 in place of 1, 2, 1, 1; with a
# bias of 10 they are 0 in place of 11, 12, 11, 11. No warning is given. A decoder that doubles the size of an image has a black edge at the
# bottom and at the right, and the weights of a PyTorch model give another image.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==1.26.4 mindspore==2.10.0 onnx==1.19.1 onnxruntime==1.23.2
cat > "$work/transpose.py" <<'PYTHON'
import sys

import mindspore
import numpy as np
import onnxruntime
from mindspore import Tensor, nn
from onnx import TensorProto, helper, numpy_helper

mindspore.set_device("CPU")
x = np.ones((1, 1, 2, 2), np.float32)
weight = np.ones((1, 1, 3, 3), np.float32)


def transposed(bias):
    layer = nn.Conv2dTranspose(
        1, 1, 3, stride=2, pad_mode="pad", padding=1, output_padding=1, has_bias=True, weight_init=Tensor(weight),
        bias_init=Tensor(np.array([bias], np.float32)),
    )
    return layer(Tensor(x)).asnumpy()[0, 0]


def gradient():
    layer = nn.Conv2d(1, 1, 3, stride=2, pad_mode="pad", padding=1, weight_init=Tensor(weight))
    image = Tensor(np.zeros((1, 1, 4, 4), np.float32))
    return mindspore.grad(lambda image: layer(image).sum())(image).asnumpy()[0, 0]


def reference(bias):
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, size, size]) for name, size in (("x", 2), ("y", 4))]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([bias], np.float32), "b")]
    graph = helper.make_graph([node], "g", value[:1], value[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8).SerializeToString()
    return onnxruntime.InferenceSession(model).run(None, {"x": x})[0][0, 0]


print("mindspore", mindspore.__version__, "ONNX Runtime", onnxruntime.__version__, "NumPy", np.__version__)
whole = np.array([[1, 2, 1, 1], [2, 4, 2, 2], [1, 2, 1, 1], [1, 2, 1, 1]], np.float32)
cut = np.pad(np.ones((3, 3), np.float32), (0, 1))
rows = {
    "gradient of Conv2d": (gradient(), whole),
    "ONNX Runtime, bias 0": (reference(0), whole),
    "Conv2dTranspose, bias 0": (transposed(0), whole * cut),
    "ONNX Runtime, bias 10": (reference(10), whole + 10),
    "Conv2dTranspose, bias 10": (transposed(10), (whole + 10) * cut),
}
changed = False
for name, (seen, known) in rows.items():
    print(f"{name}: {seen.tolist()}")
    changed |= not np.array_equal(seen, known)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the last row and column are zeros")
PYTHON
GLOG_v=3 "$work/venv/bin/python" "$work/transpose.py"
