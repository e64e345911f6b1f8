#!/usr/bin/env bash
# LiteRT returns 2.77e19 as the square root of 3.4e38, NaN as 1 / sqrt(0), and 88.4 as the logarithm of infinity.
#
# Expected: 1.84e19, infinity and infinity, as in TensorFlow for the same model. Seen with ai-edge-litert 2.3.0, tensorflow-cpu 2.21.0 as the
# converter and NumPy 2.4.6 (x86-64 Linux, AVX2 and FMA), with the default delegate, XNNPACK: square roots from 1e38 on are 1.5 times too large,
# exp(88.6) is infinite, exp(NaN) is 0, log(NaN) is 88.8, and logsumexp ignores NaN. Without delegates these results are right; softplus
# is at most 88.7 there, and 88.4 with XNNPACK. A NaN becomes a number, and a normalization by 1 / sqrt(x) has NaN for a vector of zeros.
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



inf, nan = np.inf, np.nan
rows = {
    "sqrt(3.4e38)": (tf.sqrt, [3.4e38], 1.8439e19, 2.7661e19, 1.8439e19),
    "sqrt(1e37)": (tf.sqrt, [1e37], 3.1623e18, 3.1623e18, 3.1623e18),
    "1 / sqrt(0)": (tf.math.rsqrt, [0], inf, nan, inf),
    "exp(88.6)": (tf.exp, [88.6], 3.0096e38, inf, 3.0096e38),
    "exp(NaN)": (tf.exp, [nan], nan, 0, nan),
    "log(inf)": (tf.math.log, [inf], inf, 88.3763, inf),
    "log(NaN)": (tf.math.log, [nan], nan, 88.7817, nan),
    "softplus(1000)": (tf.nn.softplus, [1000], 1000, 88.3763, 88.7228),
    "logsumexp(NaN, 1, 2)": (tf.reduce_logsumexp, [nan, 1, 2], nan, 2.3133, nan),
    "logsumexp(inf, 1, 2)": (tf.reduce_logsumexp, [inf, 1, 2], inf, 88.3763, 3.4028e38),
}
changed = False
for name, (function, values, *expected) in rows.items():
    x = np.array(values, np.float32)
    seen = [function(x).numpy()]
    seen += [in_litert(function, x, kernels=k) for k in (OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)]
    seen = [float(y.item()) for y in seen]
    print(f"{name}: TensorFlow {seen[0]:g}, LiteRT {seen[1]:g}, without delegates {seen[2]:g}")
    changed |= not np.allclose(seen, expected, rtol=1e-4, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: sqrt(3.4e38) is 1.5 times too large")
PYTHON
