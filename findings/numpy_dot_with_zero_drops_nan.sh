#!/usr/bin/env bash
# np.dot of NaN and the number 0 is 0 in float32, float64 and complex numbers, and NaN in float16; @ of the same one-column matrix has NaN.
#
# Expected: NaN, because np.dot documents that a product with a scalar is equivalent to np.multiply, and that a product of matrices is
# that of matmul. Seen with NumPy 2.4.6 (x86-64 Linux, its wheel with OpenBLAS) on 2026-11-30: a product with one number, or of a column with a
# matrix of one element, is computed by the function axpy of BLAS, which returns at once if the factor is 0. Infinity times 0 is 0 too.
# ndarray.dot, inner and tensordot agree with np.dot; einsum, multiply, outer and matmul have NaN. float16 and longdouble
# do not use BLAS and have NaN. A loss scaled by 0 hides that it diverged, and a reference for a product with one column depends on the
# function that computes it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np

print(f"numpy {np.__version__}")
same = True
for kind in (np.float32, np.float64, np.complex64, np.float16, np.longdouble):
    values, zero = np.array([np.nan, np.inf, 2], kind), kind(0)
    column, one = values[:, None], np.zeros((1, 1), kind)
    drops = {
        "dot": np.dot(values, zero),
        "dot, zero first": np.dot(zero, values),
        "method": values.dot(zero),
        "inner": np.inner(values, zero),
        "tensordot": np.tensordot(values, zero, 0),
        "dot of a column": np.dot(column, one),
    }
    keeps = {
        "multiply": values * zero,
        "einsum": np.einsum("i,->i", values, zero),
        "outer": np.outer(values, one),
        "matmul of a column": column @ one,
    }
    for name, result in {**drops, **keeps}.items():
        nans = int(np.isnan(result).sum())
        print(f"{kind.__name__}, {name}: {nans} of 3 are NaN")
        blas = kind in (np.float32, np.float64, np.complex64)
        same &= nans == (0 if name in drops and blas else 2)
if not same:
    sys.exit("the behaviour has changed")
print("as described: np.dot with the number 0 returns 0 for NaN and infinity")
PYTHON
