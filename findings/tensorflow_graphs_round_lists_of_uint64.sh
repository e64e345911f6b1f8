#!/usr/bin/env bash
# In a tf.function, tf.constant([2**64 - 1, 5], tf.uint64) is 0 and 5: the list passes through float64.
#
# Expected: the numbers of the list, as in eager execution. Seen with tensorflow-cpu 2.21.0 and NumPy 2.4.6 (x86-64 Linux): inside tf.function,
# NumPy makes an array of the list before the type is applied. Integers above and below 2**63 have the common type float64 there, so that
# 2**63 + 1 becomes 2**63 and 2**64 - 1 becomes 0, with no more than a RuntimeWarning of NumPy for the latter. A list in which all numbers are
# above 2**63, a single number and an array of uint64 are exact. Hashes, seeds and bit masks change when a function is decorated.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tensorflow-cpu==2.21.0
CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")

def in_graph(values):
    """Return the constant that a tf.function without arguments makes of the values."""
    return tf.function(lambda: tf.constant(values, tf.uint64), autograph=False)().numpy().tolist()


rows = {
    "[2**64 - 1, 5]": ([2**64 - 1, 5], [0, 5]),
    "[2**63 + 1, 5]": ([2**63 + 1, 5], [2**63, 5]),
    "[2**63 + 1, 2**63 + 3]": ([2**63 + 1, 2**63 + 3], [2**63 + 1, 2**63 + 3]),
    "2**64 - 1": (2**64 - 1, 2**64 - 1),
}
changed = False
for name, (values, expected) in rows.items():
    outside, inside = tf.constant(values, tf.uint64).numpy().tolist(), in_graph(values)
    print(f"{name}: {outside} in eager execution, {inside} in a tf.function")
    changed |= outside != values or inside != expected
array = np.array([2**64 - 1, 5], np.uint64)
inside = in_graph(array)
print(f"the array of uint64: {inside} in a tf.function")
if changed or inside != array.tolist():
    sys.exit("the behaviour has changed")
print("as described: the largest uint64 is 0 in a graph")
PYTHON
