#!/usr/bin/env bash
# The mean of uint8 numbers is 0 in LiteRT, for every tensor that has no quantization parameters.
#
# Expected: 150 for 200 and 100, as in TensorFlow for the same model, or an error of the converter, as for int8. Seen with ai-edge-litert 2.3.0,
# tensorflow-cpu 2.21.0 as the converter and NumPy 2.4.6 (x86-64 Linux): the converter and the interpreter accept the model, and the result is 0
# for every input, with the default delegate, without delegates and with the reference kernels. The converter rejects the sum and the maximum
# of uint8. Means of int32 and float32 are right. A model that averages pixels of type uint8 returns black images without a warning.
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



every = [OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.BUILTIN_REF]
rows = {
    "uint8, 200 and 100": (np.array([[200, 100]], np.uint8), [150], [0]),
    "uint8, 9 and 9": (np.array([[9, 9]], np.uint8), [9], [0]),
    "uint8, two rows": (np.array([[255, 255], [3, 5]], np.uint8), [255, 4], [0, 0]),
    "int32": (np.array([[200, 100]], np.int32), [150], [150]),
    "float32": (np.array([[200, 100]], np.float32), [150], [150]),
}


def mean(x):
    return tf.reduce_mean(x, axis=1)


changed = False
for name, (x, in_tensorflow, expected) in rows.items():
    results = [in_litert(mean, x, kernels=kernels).tolist() for kernels in every]
    print(f"{name}: TensorFlow {mean(x).numpy().tolist()}, LiteRT {results}")
    changed |= mean(x).numpy().tolist() != in_tensorflow or results != [expected] * 3
if changed:
    sys.exit("the behaviour has changed")
print("as described: the mean of 9 and 9 is 0")
PYTHON
