#!/usr/bin/env bash
# kaldiio's one-byte compression wraps numbers out of its range: 1.01 is read as 0.008, 1.5 as 0.494, and 300 as 44, where Kaldi clips to 1 and 255.
#
# Expected: the end of the range, as Kaldi's own writer stores, or an error. Seen with kaldiio 2.18.1, kaldi_native_io 1.23.0, which has Kaldi's code, and
# NumPy 2.4.6 (x86-64 Linux) on 2026-11-30, for the methods with a fixed range: 7 from 0 to 1, 6 from 0 to 255, and 4 from -32768 to 32767, in which 40000
# is read as -25536. Numbers in the range agree, but for 1.5 in method 4, which is 2 in one and 1 in the other. No warning is given. The methods that compute
# the range from the matrix are not affected. Method 7 is for probabilities, and a softmax in float32 that sums to a little more than 1, or a mask from an
# interpolation, has such numbers, so that the most certain frame becomes the least certain one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 kaldiio==2.18.1 kaldi_native_io==1.23.0
"$work/venv/bin/python" -W ignore - "$work/matrix.ark" <<'PYTHON'
import importlib.metadata
import sys

import kaldi_native_io
import kaldiio
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("kaldiio", "kaldi_native_io", "numpy")))
path = sys.argv[1]


def by_kaldiio(matrix, method):
    """Write a matrix with kaldiio and read it with Kaldi's code."""
    kaldiio.save_ark(path, {"x": matrix}, compression_method=method)
    return read()


def by_kaldi(matrix, method):
    """Write and read a matrix with Kaldi's code."""
    with kaldi_native_io.CompressedMatrixWriter(f"ark:{path}") as writer:
        writer.write("x", matrix, method)
    return read()


def read():
    """Return the matrix of the file, which both packages read as the same numbers."""
    with kaldi_native_io.SequentialFloatMatrixReader(f"ark:{path}") as reader:
        matrices = [np.array(matrix) for _, matrix in reader]
    assert np.allclose(dict(kaldiio.load_ark(path))["x"], matrices[0], rtol=1e-4, atol=1e-5)
    return matrices[0][0]


methods = kaldi_native_io.CompressionMethod
cases = [
    (7, methods.kOneByteZeroOne, [0, 0.4, 1, 1.01, 1.5, -0.1], [0, 0.4, 1, 2 / 255, 126 / 255, 231 / 255], [0, 0.4, 1, 1, 1, 0]),
    (6, methods.kOneByteUnsignedInteger, [0, 100, 255, 256, 300, -5], [0, 100, 255, 0, 44, 252], [0, 100, 255, 255, 255, 0]),
    (4, methods.kTwoByteSignedInteger, [0, 100, 32767, 32768, 40000, -40000], [0, 100, 32767, -32768, -25536, 25537], [0, 100, 32767, 32767, 32767, -32768]),
]
same = True
for number, method, values, wrapped, clipped in cases:
    matrix = np.array([values], np.float32)
    seen = by_kaldiio(matrix, number), by_kaldi(matrix, method)
    print(f"method {number}, {values}: kaldiio {np.round(seen[0], 4).tolist()}, Kaldi {np.round(seen[1], 4).tolist()}")
    same &= np.allclose(seen[0], wrapped, atol=1e-4) and np.allclose(seen[1], clipped, atol=1e-4)
if not same:
    sys.exit("the behaviour has changed")
print("as described: kaldiio wraps around, and Kaldi clips")
PYTHON
