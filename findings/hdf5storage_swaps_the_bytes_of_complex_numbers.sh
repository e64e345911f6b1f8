#!/usr/bin/env bash
# hdf5storage writes the big-endian complex numbers 1 + 1j and 2 + 2j as 4.6e-41 + 4.6e-41j and 9e-44 + 9e-44j, and reads these back.
#
# Expected: the numbers, as for big-endian floats and integers, which it writes rightly, and as h5py does. Seen with hdf5storage 0.2.2, h5py 3.16.0, SciPy
# 1.17.1 and NumPy 2.4.6 on Linux for complex64 and complex128: the bytes are stored as they are and are declared to be little-endian, in files for
# MATLAB and with the metadata of Python alike. Files of radio telescopes and FITS tables hold big-endian numbers, and Astropy and np.fromfile
# return them so. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 h5py==3.16.0 hdf5storage==0.2.2
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import h5py
import hdf5storage
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("hdf5storage", "h5py", "numpy")))
changed = False
for dtype in ("complex64", "complex128", "float32", "int32"):
    native = (np.arange(3) + (1j * np.arange(3) if "complex" in dtype else 0)).astype(dtype)
    for numbers in (native, native.astype(native.dtype.newbyteorder(">"))):
        wrong = native.byteswap() if "complex" in dtype and numbers.dtype.byteorder == ">" else native
        for metadata in (True, False):
            hdf5storage.savemat("file.mat", {"x": numbers}, store_python_metadata=metadata, truncate_existing=True)
            read = np.ravel(hdf5storage.loadmat("file.mat")["x"])
            with h5py.File("file.mat") as file:
                raw = np.ravel(file["x"][()])
                if raw.dtype.names:
                    raw = raw["real"] + 1j * raw["imag"]
            print(f"{dtype}, byte order {numbers.dtype.byteorder!r}, metadata {metadata}: {read.tolist()}, by h5py {raw.tolist()}")
            changed |= not np.array_equal(read, wrong) or not np.array_equal(raw, wrong)
    with h5py.File("h5py.h5", "w") as file:
        file["x"] = native.astype(native.dtype.newbyteorder(">"))
        changed |= not np.array_equal(file["x"][()], native)
if changed:
    sys.exit("the behaviour has changed")
print("as described: big-endian complex numbers are not swapped")
PYTHON
