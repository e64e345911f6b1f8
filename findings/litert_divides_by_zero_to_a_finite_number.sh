#!/usr/bin/env bash
# LiteRT's built-in kernels have no infinity: 1 / 0, inf + 1 and 1e30 * 1e30 are 3.4e38.
#
# Expected: infinity, as in TensorFlow for the same model. Seen with ai-edge-litert 2.3.0, tensorflow-cpu 2.21.0 as the converter and NumPy 2.4.6
# (x86-64 Linux): without delegates, additions, products, quotients, matrix products, convolutions and average pooling clamp their results to the
# largest finite number, as if they had an activation function. The default delegate, XNNPACK, returns infinity, but does not run all operators:
# pow(x, 3) and a product of two variable matrices are finite with it too. Sums along an axis are infinite in both. The same model has infinity
# or a finite number, depending on the delegate and the operator, and a check for infinity does not find an overflow.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tensorflow-cpu==2.21.0 ai-edge-litert==2.3.0
CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter, OpResolverType

tf.get_logger().setLevel("ERROR")


def in_litert(function, *operands, kernels=OpResolverType.AUTO):
    """Convert a function of TensorFlow to LiteRT and return its result."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in operands]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    content = tf.lite.TFLiteConverter.from_concrete_functions([concrete], tf.Module()).convert()
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    for detail, x in zip(sorted(interpreter.get_input_details(), key=lambda detail: detail["name"]), operands):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])



inf, largest = np.inf, float(np.finfo(np.float32).max)


def f32(*values):
    return np.array(values, np.float32)


# The function, its operands, and the results of TensorFlow, of LiteRT with its default delegate, and of the built-in kernels.
rows = {
    "1 / 0": (tf.divide, [f32(1), f32(0)], inf, inf, largest),
    "inf + 1": (tf.add, [f32(inf), f32(1)], inf, inf, largest),
    "-1e30 * 1e30": (tf.multiply, [f32(-1e30), f32(1e30)], -inf, -inf, -largest),
    "average of inf and 1": (lambda x: tf.nn.avg_pool2d(x, 2, 1, "VALID"), [f32(inf, 1, 1, 1).reshape(1, 2, 2, 1)], inf, inf, largest),
    "matrix product of 1e30 and 1e30": (tf.matmul, [f32(1e30)[None], f32(1e30)[None]], inf, largest, largest),
    "pow(inf, 3)": (lambda x: tf.pow(x, 3.0), [f32(inf)], inf, largest, largest),
    "sum of 3e38 and 3e38": (tf.reduce_sum, [f32(3e38, 3e38)], inf, inf, inf),
}
changed = False
for name, (function, operands, *expected) in rows.items():
    seen = [function(*operands).numpy()]
    seen += [in_litert(function, *operands, kernels=k) for k in (OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)]
    seen = [x.item() for x in seen]
    print(f"{name}: TensorFlow {seen[0]:g}, LiteRT {seen[1]:g}, without delegates {seen[2]:g}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: 1 / 0 is the largest finite number")
PYTHON
