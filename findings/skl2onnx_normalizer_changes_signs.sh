#!/usr/bin/env bash
# skl2onnx exports scikit-learn's Normalizer(norm="max") so that a row of negative numbers changes its signs: -5, -1, -2 becomes 5, 1, 2.
#
# Expected: scikit-learn's result, -1, -0.2 and -0.4, because it divides by the largest absolute value. Seen with skl2onnx 1.20.0, scikit-learn 1.9.1, onnxruntime
# 1.32.0 and NumPy 2.4.6 on 2026-11-30: the exporter writes the operator Normalizer of ai.onnx.ml with MAX, which divides by the largest number. A row of
# 3, -16 and 11 has the values -1.455 to 1 in place of -1 to 0.688. The norms l1 and l2 agree in both libraries, and rows without negative numbers
# agree as well, so a test with images or counts does not show it. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 onnx==1.23.2 onnxruntime==1.32.0 skl2onnx==1.20.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnxruntime
import skl2onnx
from sklearn.preprocessing import Normalizer

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("skl2onnx", "scikit-learn", "onnxruntime", "numpy")))
rows = np.array([[1, 4, 2], [3, -16, 11], [1, 2, -4], [-5, -1, -2], [0, 0, 0]], np.float32)
same = True
for norm in ("l1", "l2", "max"):
    normalizer = Normalizer(norm).fit(rows)
    model = skl2onnx.to_onnx(normalizer, rows[:1])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exported, original = session.run(None, {"X": rows})[0], normalizer.transform(rows)
    operators = [f"{node.domain}.{node.op_type}" for node in model.graph.node]
    for row, first, second in zip(rows, original, exported):
        if norm == "max":
            print(f"{row.tolist()}: scikit-learn {first.round(3).tolist()}, ONNX {second.round(3).tolist()}")
    equal = np.isclose(original, exported, atol=1e-6).all(axis=1).tolist()
    print(f"norm={norm!r}, operators {operators}: equal rows {equal}")
    same &= equal == ([True, False, False, False, True] if norm == "max" else [True] * 5)
same &= np.allclose(exported[3], [5, 1, 2], atol=1e-5) and np.allclose(original[3], [-1, -0.2, -0.4], atol=1e-5)
if not same:
    sys.exit("the behaviour has changed")
print("as described: rows with negative numbers are divided by their largest number")
PYTHON
