#!/usr/bin/env bash
# In h5py, dataset.astype("u1")[:] and dataset[:].astype("u1") return other numbers: 300 becomes 255 or 44, and -5 becomes 0 or 251.
#
# Expected: the same numbers; the documentation of h5py describes astype as a way to read data in another type. Seen with h5py 3.16.0 and NumPy
# 2.4.6 (x86-64 Linux): HDF5 converts while it reads and saturates at the limits of the type, and NumPy wraps integers around. A dataset that is
# created or written with a wider array is saturated too, and so is read_direct. A single Python number is converted by NumPy before it is
# written, so that 300 raises an OverflowError. Both agree within the range of the type: numbers are cut towards zero. Pixels that a program
# stores as int64 differ from the pixels of a program that converts them first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 h5py==3.16.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import h5py
import numpy as np

file = h5py.File("memory.h5", "w", driver="core", backing_store=False)
integers = file.create_dataset("integers", data=np.array([300, -5, 70000, 7], np.int32))
floats = file.create_dataset("floats", data=np.array([2.9, -2.9, 1e10, -1e10]))
created = file.create_dataset("created", data=np.array([300, -5, 70000, 7]), dtype="u1")
written = file.create_dataset("written", shape=(4,), dtype="u1")
written[:] = np.array([300, -5, 70000, 7])
direct = np.zeros(4, "u1")
integers.read_direct(direct)
saturated = [255, 0, 255, 7]
rows = {
    "dataset.astype('u1')[:]": (integers.astype("u1")[:], saturated),
    "dataset[:].astype('u1')": (integers[:].astype("u1"), [44, 251, 112, 7]),
    "dataset.astype('i1')[:]": (integers.astype("i1")[:], [127, -5, 127, 7]),
    "dataset[:].astype('i1')": (integers[:].astype("i1"), [44, -5, 112, 7]),
    "create_dataset(dtype='u1')": (created[:], saturated),
    "dataset[:] = array": (written[:], saturated),
    "read_direct": (direct, saturated),
    "floats.astype('i4')[:]": (floats.astype("i4")[:], [2, -2, 2**31 - 1, -(2**31)]),
}
changed = False
for name, (result, expected) in rows.items():
    print(f"{name}: {result.tolist()}")
    changed |= result.tolist() != expected
try:
    written[0] = 300
    changed = True
except OverflowError as error:
    print("dataset[0] = 300:", error)
if changed:
    sys.exit("the behaviour has changed")
print("as described: HDF5 saturates and NumPy wraps around")
PYTHON
