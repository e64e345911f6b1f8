#!/usr/bin/env bash
# rasterio converts numbers by NumPy's rules when it writes and by GDAL's when it reads: 300 is written to a uint8 file as 44 and read as 255.
#
# Expected: one rule for both, and GDAL's, which rounds and saturates, because the library is an interface to it. Seen with rasterio 1.4.4 (GDAL 3.10.3)
# and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: DatasetWriter.write casts the array by astype first, so 1.7 is stored as 1, 300 as 44 and -5 as 251; a read
# with out_dtype="uint8" from a file of the same numbers in float64 or int32 has 2, 255 and 0. An int16 file stores 70000 as 4464. The docstrings of
# read and write do not say which rule applies. No warning or error is given. A prediction that is written as bytes and a prediction
# that is written as float and read as bytes differ in nearly all pixels with a fraction above one half.
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
from rasterio.io import MemoryFile

print(f"rasterio {rasterio.__version__}, GDAL {rasterio.__gdal_version__}, numpy {importlib.metadata.version('numpy')}")
described = [
    (np.array([[0.4, 1.7, 2.5, 254.6, 3.5, -0.6]]), "uint8", [0, 1, 2, 254, 3, 0], [0, 2, 3, 255, 4, 0]),
    (np.array([[0.4, -1.7, 2.5, 254.6, -0.6]]), "int16", [0, -1, 2, 254, 0], [0, -2, 3, 255, -1]),
    (np.array([[100, 300, -5, 70000]], np.int32), "uint8", [100, 44, 251, 112], [100, 255, 0, 255]),
    (np.array([[100, 300, -5, 70000]], np.int32), "int16", [100, 300, -5, 4464], [100, 300, -5, 32767]),
]


def through_a_file(numbers, kind, out):
    with MemoryFile() as memory:
        profile = {"driver": "GTiff", "height": 1, "width": numbers.shape[1], "count": 1, "dtype": kind}
        with memory.open(**profile, transform=rasterio.transform.from_origin(0, 1, 1, 1)) as file:
            file.write(numbers, 1)
        with memory.open() as file:
            return file.read(1, out_dtype=out)[0].tolist()


same = True
for numbers, kind, *expected in described:
    written, read = through_a_file(numbers, kind, kind), through_a_file(numbers, numbers.dtype.name, kind)
    print(f"{numbers.dtype} {numbers[0].tolist()}\n  written to {kind}: {written}\n  read as {kind}:    {read}")
    same &= [written, read] == expected
if not same:
    sys.exit("the behaviour has changed")
print("as described: writing truncates and wraps around, reading rounds and saturates")
PYTHON
