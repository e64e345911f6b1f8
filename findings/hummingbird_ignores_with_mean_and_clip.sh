#!/usr/bin/env bash
# Hummingbird converts scalers to tensor operations without some of their arguments: StandardScaler(with_mean=False) subtracts the mean.
#
# Expected: the numbers of scikit-learn, or an error as for estimators that Hummingbird does not support. Seen with hummingbird-ml 0.4.12,
# scikit-learn 1.8.0, torch 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: with_mean=False, clip=True of MinMaxScaler,
# drop="first" of OneHotEncoder and add_indicator=True of SimpleImputer have no effect, the last two on the number of columns. A row of
# zeros becomes NaN in Normalizer, and stays 0 in scikit-learn. The same arguments with their defaults are right. No warning is given. A
# model that was trained behind one of these steps sees other features after the conversion.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 scikit-learn==1.8.0 hummingbird-ml==0.4.12
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from hummingbird.ml import convert
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("hummingbird-ml", "scikit-learn", "torch", "numpy")))
column = np.array([[1], [2], [3]], np.float32)
labels = np.array([[0], [1], [2]])
missing = np.array([[1], [np.nan], [3]], np.float32)
cases = [
    ("StandardScaler()", StandardScaler(), column, column, False),
    ("StandardScaler(with_mean=False)", StandardScaler(with_mean=False), column, column, True),
    ("MinMaxScaler()", MinMaxScaler(), column, column * 2, False),
    ("MinMaxScaler(clip=True)", MinMaxScaler(clip=True), column, column * 2, True),
    ("OneHotEncoder()", OneHotEncoder(), labels, labels, False),
    ("OneHotEncoder(drop='first')", OneHotEncoder(drop="first"), labels, labels, True),
    ("SimpleImputer()", SimpleImputer(), missing, missing, False),
    ("SimpleImputer(add_indicator=True)", SimpleImputer(add_indicator=True), missing, missing, True),
    ("Normalizer()", Normalizer(), column, column, False),
    ("Normalizer() of a row of zeros", Normalizer(), column, column - 1, True),
]
changed = False
for name, step, training, data, affected in cases:
    step.fit(training)
    expected = step.transform(data)
    expected = np.asarray(expected.toarray() if hasattr(expected, "toarray") else expected)
    seen = np.asarray(convert(step, "torch", training).transform(data))
    print(f"{name}: scikit-learn {expected.round(3).tolist()}, Hummingbird {seen.round(3).tolist()}")
    equal = seen.shape == expected.shape and np.allclose(seen, expected, atol=1e-5)
    changed |= equal == affected
if changed:
    sys.exit("the behaviour has changed")
print("as described: arguments of scalers and encoders have no effect")
PYTHON
