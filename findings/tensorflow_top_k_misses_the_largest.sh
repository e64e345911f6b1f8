#!/usr/bin/env bash
# TensorFlow's top_k does not return the largest number of a tensor that has a NaN, and tf.sort leaves the tensor unsorted.
#
# Expected: NaN first or last, and the numbers in order. Seen with tensorflow-cpu 2.21.0 and NumPy 2.4.6 (x86-64 Linux): the two largest of
# 2, NaN, 1, 4 are 2 and NaN. tf.sort of 3, 1, NaN, 2 is 1, 3, NaN, 2, in eager execution and in a tf.function; argsort has the same order.
# The order depends on k: for seven numbers, the largest is found for k=1 and k=3, and for k=7 the result is not sorted. Compiled by XLA,
# the functions put NaN at one end and sort the numbers. One NaN in the scores of a beam search or a retrieval hides better candidates.
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
nan = np.nan
four, seven = [2, nan, 1, 4], [1, nan, 3, nan, 5, 2, 4]


def top(k):
    return lambda x: tf.math.top_k(x, k).values


rows = {
    "top 2 of 2, NaN, 1, 4": (four, top(2), [2, nan], [nan, 4]),
    "top 1 of 1, NaN, 3, NaN, 5, 2, 4": (seven, top(1), [5], [nan]),
    "top 3 of 1, NaN, 3, NaN, 5, 2, 4": (seven, top(3), [nan, 5, 4], [nan, nan, 5]),
    "top 7 of 1, NaN, 3, NaN, 5, 2, 4": (seven, top(7), [5, 3, 1, nan, nan, 4, 2], [nan, nan, 5, 4, 3, 2, 1]),
    "sort of 3, 1, NaN, 2": ([3, 1, nan, 2], tf.sort, [1, 3, nan, 2], [1, 2, 3, nan]),
    "argsort of 3, 1, NaN, 2": ([3, 1, nan, 2], tf.argsort, [1, 0, 2, 3], [1, 3, 0, 2]),
}
changed = False
for name, (values, function, eager, xla) in rows.items():
    x = tf.constant(values, tf.float32)
    seen = [f(x).numpy() for f in (function, tf.function(function, autograph=False), tf.function(function, autograph=False, jit_compile=True))]
    print(f"{name}: {seen[0].tolist()}, in a graph {seen[1].tolist()}, by XLA {seen[2].tolist()}")
    changed |= not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(seen, (eager, eager, xla)))
if changed:
    sys.exit("the behaviour has changed")
print("as described: 4 is not one of the two largest of 2, NaN, 1 and 4")
PYTHON
