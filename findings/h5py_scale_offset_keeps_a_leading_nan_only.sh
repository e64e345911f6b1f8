#!/usr/bin/env bash
# The scale-offset filter of HDF5 keeps a NaN only at the start of a chunk: h5py reads 1, NaN, -3 and 4 back as 1, -3, -3 and 4.
#
# Expected: a NaN stays NaN or raises an error when it is written, wherever it is; h5py documents an absolute error of at most half of the last
# digit. Seen with h5py 3.16.0 (HDF5 2.0.0) and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30, float64, scaleoffset=2: a NaN behind the first element of its
# chunk becomes the smallest number of the chunk. If the first element of the chunk is NaN, all numbers of the chunk are stored exactly, with
# more than four times the size, and each NaN is kept, so the result depends on the chunk shape. An infinity is kept everywhere. No warning is given.
# Missing values of measured data become plausible measurements.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 h5py==3.16.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import os
import sys

import h5py
import numpy as np

print(f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}, numpy {importlib.metadata.version('numpy')}")
path = os.path.join(os.environ["WORK"], "data.h5")
numbers = np.tile([1.2345678, 2.3456789, -3.456789, 4.567891], 8)


def stored(places, value=np.nan, chunk=32):
    data = numbers.copy()
    data[places] = value
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(chunk,), scaleoffset=2)
    with h5py.File(path) as file:
        return data, file["x"][:], file["x"].id.get_storage_size()


same = True
cases = [
    ([], 32, [], False),
    ([1], 32, [], False),
    ([5, 31], 32, [], False),
    ([0], 32, [0], True),
    ([0, 9], 32, [0, 9], True),
    ([8], 32, [], False),
    ([8], 8, [8], None),
]
for places, chunk, kept, exact in cases:
    data, result, size = stored(places, chunk=chunk)
    found = np.flatnonzero(np.isnan(result)).tolist()
    others = ~np.isnan(data)
    error = float(np.abs(result - data)[others].max())
    print(f"NaN at {places}, chunks of {chunk}: NaN read at {found}; error of the other numbers {error:.4f}; {size} bytes")
    same &= found == kept and error <= 0.005 and (exact is None or (error == 0) == exact)
    same &= all(result[place] == numbers.min() for place in places if place not in kept)
_, result, _ = stored([5], np.inf)
print(f"infinity at [5]: {result[5]}")
same &= bool(np.isposinf(result[5]))
if not same:
    sys.exit("the behaviour has changed")
print("as described: a NaN that is not the first element of its chunk becomes the smallest number")
PYTHON
