#!/usr/bin/env bash
# The filters of dask-image with mode="wrap" wrap around the block in place of the array: the edge changes from 4 to 2.33 with two blocks.
#
# Expected: the result of scipy.ndimage for each division into blocks, as for the modes reflect, nearest, mirror and constant. Seen with
# dask-image 2026.5.0, dask 2026.8.0, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: the outer blocks get no elements of the
# opposite end of the array, and SciPy takes them from the other end of the same block. The uniform filter of 0 to 11 begins with 4 in one
# block, 2.33 in two, 1.67 in three and 1.33 in four. All of uniform_filter, gaussian_filter, sobel, laplace, median_filter and the minimum
# and maximum filters are affected; convolve and correlate are right. No warning is given. Periodic fields, such as a map around the globe,
# get a jump at the border that depends on the block size.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 dask==2026.8.0 dask-image==2026.5.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import dask.array as da
import numpy as np
import scipy.ndimage
from dask_image import ndfilters

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dask-image", "dask", "scipy", "numpy")))
x = np.arange(12.0)
changed = False
for block, first, last in ((12, 4, 7), (6, 7 / 3, 26 / 3), (4, 5 / 3, 28 / 3), (3, 4 / 3, 29 / 3)):
    blocks = da.from_array(x, chunks=block)
    seen = np.asarray(ndfilters.uniform_filter(blocks, 3, mode="wrap"))
    wanted = scipy.ndimage.uniform_filter(x, 3, mode="wrap")
    print(f"blocks of {block}: dask-image {seen[[0, -1]].round(2).tolist()}, SciPy {wanted[[0, -1]].tolist()}")
    changed |= not np.allclose(seen[[0, -1]], [first, last]) or not np.allclose(seen[1:-1], wanted[1:-1])
    changed |= not np.allclose(wanted[[0, -1]], [4, 7])
image = np.random.default_rng(0).random((12, 14))
blocks = da.from_array(image, chunks=(6, 7))
weights = np.arange(9.0).reshape(3, 3)
filters = {
    "uniform_filter": (3,),
    "gaussian_filter": (1.0,),
    "sobel": (),
    "laplace": (),
    "median_filter": (3,),
    "maximum_filter": (3,),
    "minimum_filter": (3,),
    "convolve": (weights,),
    "correlate": (weights,),
}
for name, arguments in filters.items():
    errors = {}
    for mode in ("reflect", "nearest", "mirror", "constant", "wrap"):
        seen = np.asarray(getattr(ndfilters, name)(blocks, *arguments, mode=mode))
        errors[mode] = float(np.abs(seen - getattr(scipy.ndimage, name)(image, *arguments, mode=mode)).max())
    print(f"{name}: largest differences from SciPy {({mode: round(error, 3) for mode, error in errors.items()})}")
    affected = name not in ("convolve", "correlate")
    changed |= (errors.pop("wrap") > 0.01) != affected or max(errors.values()) > 1e-9
if changed:
    sys.exit("the behaviour has changed")
print("as described: the result depends on the blocks")
PYTHON
