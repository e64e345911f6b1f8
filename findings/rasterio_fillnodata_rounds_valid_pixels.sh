#!/usr/bin/env bash
# rasterio's fillnodata changes pixels that need no filling: 5123456.78 becomes 5123457.0, because the whole image passes through float32.
#
# Expected: only pixels with a mask of 0 change, as the docstring says ("values for all designated nodata pixels"). Seen with rasterio 1.4.4 (GDAL 3.10.3)
# and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: valid pixels of float64 lose all digits after the seventh, and int32 labels from 16777217 on change,
# although the result has the type of the input. Pixels with the mask 1 in an image without any hole change as well. No warning is given. Times in seconds
# since 1970 change by up to a minute, and identifiers of 32 bits become those of other objects.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 rasterio==1.4.4
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import rasterio
from rasterio.fill import fillnodata

print(f"rasterio {rasterio.__version__}, GDAL {rasterio.__gdal_version__}, numpy {importlib.metadata.version('numpy')}")
rows = {
    "float32": [1.5, 2.25, 3.125, 16777216],
    "float64": [5123456.78, 0.1, 1700000059.0, 16777217.0],
    "int32": [16777217, 123456789, 5, 2000000001],
}
same = True
for kind, numbers in rows.items():
    for holes in (1, 0):
        image = np.tile(np.array(numbers, kind), (3, 1))
        mask = np.ones(image.shape, np.uint8)
        mask[1, 1] = 1 - holes
        filled = fillnodata(image.copy(), mask=mask)
        valid = mask == 1
        change = np.abs(filled.astype(np.float64) - image)[valid]
        print(f"{kind}, {holes} holes: {image[0].tolist()} becomes {filled[0].tolist()} ({filled.dtype}), largest change {change.max():g}")
        same &= filled.dtype == image.dtype and np.array_equal(filled[valid], image.astype(np.float32).astype(np.float64)[valid].astype(kind))
        same &= (change.max() == 0) == (kind == "float32")
if not same:
    sys.exit("the behaviour has changed")
print("as described: valid pixels are rounded to float32")
PYTHON
