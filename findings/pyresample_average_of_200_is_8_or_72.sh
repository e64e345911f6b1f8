#!/usr/bin/env bash
# pyresample's bucket average of a uint8 image of 200 everywhere is 8 or 72, depending on the chunks; that of int16 numbers 20000 is -12768.
#
# Expected: 200 and 20000, as for the same image as floats and from get_min and get_max. Seen with pyresample 1.35.0, Dask 2026.8.0, xarray
# 2026.9.0 and NumPy 2.4.6 on Linux: get_sum is a histogram with the image as its weights, and np.histogram sums weights in their own type. The
# sum of each chunk wraps around, Dask adds the sums of the chunks in 64 bits, and the average is a float64 of it. Satellite images are
# often bytes or int16 counts, and a bucket of a coarser grid has many of them. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 dask==2026.8.0 xarray==2026.9.0 pyresample==1.35.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import dask
import dask.array
import numpy as np
import pyresample
from pyresample.bucket import BucketResampler
from pyresample.geometry import AreaDefinition

print(f"pyresample {pyresample.__version__}, Dask {dask.__version__}, NumPy {np.__version__}")
longitude, latitude = np.meshgrid(np.linspace(0.25, 9.75, 20), np.linspace(50.25, 59.75, 20))
area = AreaDefinition("grid", "grid", "grid", {"proj": "longlat"}, 10, 10, (0, 50, 10, 60))
changed = False
for dtype, value, expected in (("uint8", 200, (8, 72)), ("int16", 20000, (3616, -12768)), ("float32", 200, (200, 200))):
    seen, limits = [], set()
    # A bucket has four pixels: of two rows, which are in one chunk or in two.
    for rows in (20, 5):
        image = dask.array.from_array(np.full((20, 20), value, dtype), chunks=(rows, 20))
        buckets = BucketResampler(area, dask.array.from_array(longitude), dask.array.from_array(latitude))
        averages = buckets.get_average(image).compute()
        seen.append(sorted(set(averages.ravel().tolist())))
        limits |= {*buckets.get_min(image).compute().ravel().tolist(), *buckets.get_max(image).compute().ravel().tolist()}
    print(f"{dtype}, {value}: averages with one chunk {seen[0]}, with four chunks {seen[1]}; minimum and maximum {sorted(limits)}")
    changed |= limits != {value} or seen[0] != [expected[0]] or expected[1] not in seen[1]
weights = np.full(4, 200, np.uint8)
sums, _ = np.histogram([0, 0, 0, 0], bins=1, weights=weights)
print(f"np.histogram with four weights of 200: {sums.tolist()}, {sums.dtype}; np.bincount: {np.bincount([0, 0, 0, 0], weights).tolist()}")
changed |= sums.tolist() != [32]
if changed:
    sys.exit("the behaviour has changed")
print("as described: the sum of each chunk wraps around")
PYTHON
