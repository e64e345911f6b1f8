#!/usr/bin/env bash
# In a tf.function, (x * 1e30) * 1e30 of 0 is NaN, and (x + 12582912) - 12582912 does not round: TensorFlow joins the constants.
#
# Expected: the order of operations that is written, as in eager execution. Seen with tensorflow-cpu 2.21.0 and NumPy 2.4.6 (x86-64 Linux):
# Grappler multiplies 1e30 by 1e30 before it has an x, so that 0 becomes NaN and 1e-30 becomes infinite, in float64 too for 1e200.
# (x / 1e30) / 1e30 turns infinity into NaN. Adding and subtracting 1.5 * 2**23, which rounds x to an integer, has no effect.
# pow(x, -0.5) becomes a reciprocal square root: pow(-inf, -0.5) is NaN instead of 0. jit_compile=True does not prevent the products and sums.
# The guide of Grappler names simplifications only; issue 52045 of TensorFlow reports one case, an added epsilon that vanishes. Scaling in two
# steps against overflow, rounding by addition and error-free sums give other results when a function is decorated.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tensorflow-cpu==2.21.0
CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
inf, nan = np.inf, np.nan
e = np.float32(1e-30) * np.float32(1e30) * np.float32(1e30)
rows = {
    "(x * 1e30) * 1e30": (lambda x: (x * 1e30) * 1e30, np.float32, [0, 1e-30], [0, e], [nan, inf]),
    "(x / 1e30) / 1e30": (lambda x: (x / 1e30) / 1e30, np.float32, [inf, 1], [inf, 0], [nan, 0]),
    "(x + 12582912) - 12582912": (lambda x: (x + 12582912.0) - 12582912.0, np.float32, [2.3, -5.7], [2, -6], [2.3, -5.7]),
    "(x * 1e200) * 1e200, float64": (lambda x: (x * 1e200) * 1e200, np.float64, [0.0], [0], [nan]),
    "pow(x, -0.5)": (lambda x: tf.pow(x, -0.5), np.float32, [-inf, -0.0], [0, inf], [nan, -inf]),
}
changed = False
for name, (function, dtype, values, eager, graph) in rows.items():
    x = tf.constant(np.array(values, dtype))
    seen = [f(x).numpy() for f in (function, tf.function(function, autograph=False))]
    print(f"{name} for x = {values}: {seen[0].tolist()}, in a graph {seen[1].tolist()}")
    expected = [np.array(row, dtype) for row in (eager, graph)]
    changed |= not all(np.allclose(a, b, rtol=1e-6, equal_nan=True) for a, b in zip(seen, expected))
if changed:
    sys.exit("the behaviour has changed")
print("as described: 0 times two numbers is NaN in a graph")
PYTHON
