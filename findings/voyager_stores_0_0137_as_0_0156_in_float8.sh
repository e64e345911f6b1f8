#!/usr/bin/env bash
# Voyager stores 0.013671875 and 0.01171875, which E4M3 has, as 0.015625; its other type of 8 bits, Float8, makes unit vectors 8 percent shorter.
#
# Expected: numbers that the format has stay equal, others become the nearest one, as with ml_dtypes. Seen with voyager 2.2.3, ml_dtypes 0.5.4 and NumPy
# 2.4.6 on Linux: E4M3 reads and writes numbers below 2**-6 by other rules than the format's, so that 4, 6 and 7 times 2**-9 become 3.5, 8 and
# 8 times. Float8, steps of 1/127 from -1 to 1, truncates towards zero and turns NaN into 0. The elements of unit vectors of 768 numbers are about
# 0.036: their mean error is twice that of rounding with both types. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.5.4 voyager==2.2.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import ml_dtypes
import numpy as np
from voyager import Index, Space, StorageDataType

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("voyager", "ml_dtypes", "numpy")))


def stored(rows, kind):
    rows = np.asarray(rows, np.float32)
    index = Index(Space.Euclidean, rows.shape[1], storage_data_type=kind)
    return np.array([index.get_vector(index.add_item(row)) for row in rows])


def rounded(rows, kind):
    rows = np.asarray(rows, np.float32)
    return rows.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) if kind == StorageDataType.E4M3 else np.round(rows * 127) / 127


every = np.unique(np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
seen = stored([every], StorageDataType.E4M3)[0]
wrong = every != seen
print(f"numbers of E4M3 times 512 that change: {dict(zip((every[wrong] * 512).tolist(), (seen[wrong] * 512).tolist(), strict=True))}")
changed = dict(zip((every[wrong] * 512).tolist(), (seen[wrong] * 512).tolist(), strict=True)) != {4: 3.5, 5: 3.5, 6: 8, 7: 8}
fractions = np.array([[0.0078, 0.5, 0.9999, -0.9999, np.nan]])
steps = (stored(fractions, StorageDataType.Float8)[0] * 127).round(3).tolist()
print(f"Float8, {fractions[0].tolist()} in steps of 1/127: {steps}")
changed |= steps != [0, 63, 126, -126, 0]
units = np.random.default_rng(0).normal(size=(100, 768))
units /= np.linalg.norm(units, axis=1, keepdims=True)
for kind, factor, length in ((StorageDataType.E4M3, 1.92, 1.003), (StorageDataType.Float8, 1.95, 0.917)):
    seen, best = stored(units, kind), rounded(units, kind)
    error, least = (np.linalg.norm(vectors - units, axis=1).mean() for vectors in (seen, best))
    lengths = [float(np.linalg.norm(vectors, axis=1).mean()) for vectors in (seen, best)]
    print(f"{kind}: mean error of unit vectors {error:.4f}, if rounded {least:.4f}; mean length {lengths[0]:.4f}, if rounded {lengths[1]:.4f}")
    changed |= abs(error / least - factor) > 0.1 or abs(lengths[0] - length) > 0.005
if changed:
    sys.exit("the behaviour has changed")
print("as described: E4M3 differs below 2**-6, and Float8 truncates")
PYTHON
