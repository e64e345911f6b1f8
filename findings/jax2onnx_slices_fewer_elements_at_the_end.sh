#!/usr/bin/env bash
# jax2onnx exports lax.dynamic_slice so that a slice at the end is cut: two elements are returned where JAX returns four.
#
# Expected: the window of the requested size that JAX documents: its start is moved so that it is within the array. Seen with jax2onnx 0.17.1,
# jax 0.10.2, onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the start 8 of 10 elements returns elements 8
# and 9 in place of 6 to 9, and a start of 20 returns no elements. The mean of the slice is 8.5 in place of 7.5, and 0 for no elements.
# dynamic_update_slice and starts inside of the array are right. ONNX Runtime logs a warning about the shape if the slice itself is
# the output, and none for the mean. A window over the last tokens of a buffer is shorter than in JAX.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 onnx==1.23.2 onnxruntime==1.32.0 jax2onnx==0.17.1
cat > "$work/slices.py" <<'PYTHON'
import importlib.metadata
import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from jax import lax
from jax2onnx import to_onnx

logging.disable(logging.CRITICAL)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax2onnx", "jax", "onnx", "onnxruntime")))
array = np.arange(10, dtype=np.float32)


def window(x, start):
    return lax.dynamic_slice(x, (start,), (4,))


def mean(x, start):
    return jnp.mean(window(x, start))


def update(x, start):
    return lax.dynamic_update_slice(x, jnp.full(4, -1, jnp.float32), (start,))


def exported(function):
    """Return a session of ONNX Runtime for a function of JAX, and the declared shape of its result."""
    model = to_onnx(function, [jax.ShapeDtypeStruct(array.shape, array.dtype), jax.ShapeDtypeStruct((), np.int32)])
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    return lambda start: session.run(None, dict(zip(names, (array, start))))[0], session.get_outputs()[0].shape


changed = False
expected = {0: [0, 1, 2, 3], 6: [6, 7, 8, 9], 8: [8, 9], 20: [], -3: [7, 8, 9]}
for function in (window, mean, update):
    session, shape = exported(function)
    for start, wrong in expected.items():
        start = np.array(start, np.int32)
        correct = np.asarray(function(array, start))
        seen = session(start)
        print(f"{function.__name__} from {start}: JAX {correct.tolist()}, exported {seen.tolist()} (declared shape {shape})")
        if function is window:
            changed |= seen.tolist() != wrong or correct.shape != (4,) or shape != [4]
        else:
            same = np.allclose(seen, correct, equal_nan=True)
            changed |= same != (function is update or len(wrong) == 4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the slice at the end has two elements")
PYTHON
JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/slices.py"
