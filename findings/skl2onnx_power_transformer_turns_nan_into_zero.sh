#!/usr/bin/env bash
# skl2onnx exports PowerTransformer so that NaN is transformed as if it were 0: the model returns -3.07 where scikit-learn returns NaN.
#
# Expected: NaN, as from scikit-learn, whose docstring says that NaN is "maintained in transform", and as from the exported StandardScaler. Seen with skl2onnx
# 1.20.0, scikit-learn 1.9.1, onnxruntime 1.32.0 and NumPy 2.4.6 on 2026-11-30, method "yeo-johnson", which is the default, with and without standardize: the
# exporter adds both branches of the formula and replaces NaN in the unused branch by 0, which replaces a missing value as well. With
# method="box-cox" NaN stays NaN. No warning is given. A classifier behind it that rejects missing values accepts them after the export.
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
from sklearn.preprocessing import PowerTransformer, StandardScaler

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("skl2onnx", "scikit-learn", "onnxruntime", "numpy")))
data = np.array([[1, 10], [2, 20], [3, 30], [4, 50], [7, 90]], np.float32)
cases = {
    "yeo-johnson": PowerTransformer(),
    "yeo-johnson, not standardized": PowerTransformer(standardize=False),
    "box-cox": PowerTransformer(method="box-cox"),
    "StandardScaler": StandardScaler(),
}
same = True
for name, transformer in cases.items():
    transformer.fit(data)
    rows = np.array([[2, 20], [np.nan, 20], [2, np.nan]], np.float32)
    model = skl2onnx.to_onnx(transformer, data[:1])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exported, original = session.run(None, {"X": rows})[0], transformer.transform(rows)
    print(f"{name}: scikit-learn {original.round(3).tolist()}, ONNX {exported.round(3).tolist()}")
    missing = np.isnan(rows)
    same &= np.array_equal(np.isnan(original), missing) and np.allclose(original[~missing], exported[~missing], atol=1e-3)
    if name.startswith("yeo-johnson"):
        zeros = transformer.transform(np.zeros((1, 2), np.float32))[0]
        print(f"  0 and 0 become {zeros.round(3).tolist()} in scikit-learn")
        same &= np.allclose([exported[1, 0], exported[2, 1]], zeros, atol=1e-3)
    else:
        same &= np.array_equal(np.isnan(exported), missing)
if not same:
    sys.exit("the behaviour has changed")
print("as described: NaN is transformed as 0")
PYTHON
