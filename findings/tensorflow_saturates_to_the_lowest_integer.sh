#!/usr/bin/env bash
# TensorFlow's saturate_cast turns 1e30 into the lowest int64, and into half of the largest uint64.
#
# Expected: 9223372036854775807 or a number near it; the documentation promises a cast without overflow, by clamping before the cast. Seen with
# tensorflow-cpu 2.21.0 and NumPy 2.4.6 (x86-64 Linux): the limit 2**63 - 1 is rounded to 2**63 in float32, float64 and bfloat16, and the cast
# of 2**63 is -2**63; for uint64 the result is 2**63. Casts to int32 are right: float32 is clamped to 2147483520. Compiled by XLA, the same
# function returns 9223372036854775807. A large number loses its sign without a warning, in the function that is there to prevent this.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tensorflow-cpu==2.21.0
CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$work/venv/bin/python" - <<'PYTHON'
import sys

import tensorflow as tf

tf.get_logger().setLevel("ERROR")
numbers = [1e30, -1e30, 3000.0]
lowest = -(2**63)
expected = {
    ("float32", "int64"): [lowest, lowest, 3000],
    ("float64", "int64"): [lowest, lowest, 3000],
    ("bfloat16", "int64"): [lowest, lowest, 3008],
    ("float32", "uint64"): [2**63, 0, 3000],
    ("float64", "uint64"): [2**63, 0, 3000],
    ("float32", "int32"): [2147483520, -(2**31), 3000],
    ("float64", "int32"): [2**31 - 1, -(2**31), 3000],
}
changed = False
for (source, target), integers in expected.items():
    x = tf.cast(tf.constant(numbers, tf.float64), source)
    eager = tf.saturate_cast(x, target).numpy().tolist()
    print(f"{source} to {target}: {eager}")
    changed |= eager != integers
compiled = tf.function(lambda x: tf.saturate_cast(x, tf.int64), autograph=False, jit_compile=True)(tf.constant(numbers)).numpy().tolist()
print(f"float32 to int64, XLA: {compiled}")
if changed or compiled != [2**63 - 1, lowest, 3000]:
    sys.exit("the behaviour has changed")
print("as described: 1e30 is saturated to the lowest integer")
PYTHON
