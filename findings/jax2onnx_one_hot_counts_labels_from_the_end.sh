#!/usr/bin/env bash
# jax2onnx exports jax.nn.one_hot so that the label -1 is the last class; in JAX it is a row of zeros.
#
# Expected: the row of zeros that JAX documents for labels outside of the classes, or an error of the export. Seen with jax2onnx 0.17.1, jax 0.10.2,
# onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: OneHot of ONNX counts negative indices from the end, so
# -5 of five classes is class 0, and -6 has no class. Labels above the range are right. lax.round, which rounds halves away from
# zero in JAX, becomes ONNX's Round: 0.5, 2.5 and -2.5 become 0, 2 and -2 in place of 1, 3 and -3. No warning is given. A loss or a metric with
# -1 for "ignore" counts these samples as the last class.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 onnx==1.23.2 onnxruntime==1.32.0 jax2onnx==0.17.1
cat > "$work/labels.py" <<'PYTHON'
import importlib.metadata
import logging
import sys

import jax
import numpy as np
import onnx
import onnxruntime
from jax import lax
from jax2onnx import to_onnx

logging.disable(logging.CRITICAL)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax2onnx", "jax", "onnx", "onnxruntime")))


def both(function, operand):
    """Return the results of JAX and of ONNX Runtime for the exported model."""
    model = to_onnx(function, [jax.ShapeDtypeStruct(operand.shape, operand.dtype)])
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(function(operand)), session.run(None, {session.get_inputs()[0].name: operand})[0]


def encoded(labels):
    return jax.nn.one_hot(labels, 5)


labels = np.array([0, 4, 5, 100, -1, -4, -5, -6], np.int32)
expected = [0, 4, None, None, 4, 1, 0, None]
changed = False
for label, row, exported, place in zip(labels, *both(encoded, labels), expected):
    print(f"label {label}: JAX {row.astype(int).tolist()}, exported {exported.astype(int).tolist()}")
    correct = [int(column == label) for column in range(5)]
    wrong = [int(column == place) for column in range(5)]
    changed |= row.tolist() != correct or exported.tolist() != wrong

halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
rounded, exported = both(lax.round, halves)
print(f"lax.round of {halves.tolist()}: JAX {rounded.tolist()}, exported {exported.tolist()}")
changed |= rounded.tolist() != [-3, -2, -1, 1, 2, 3] or exported.tolist() != [-2, -2, 0, 0, 2, 2]
if changed:
    sys.exit("the behaviour has changed")
print("as described: the label -1 is the last class")
PYTHON
JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/labels.py"
