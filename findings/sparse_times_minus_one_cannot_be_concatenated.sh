#!/usr/bin/env bash
# In sparse, an array times -1 cannot be concatenated or stacked with the array: its fill value is -0.0. A negated dense array has no zeros left.
#
# Expected: a sparse array of both, because -0.0 equals 0.0; and for [[0, 2]] and its negative one stored element each, as scipy.sparse
# stores. Seen with sparse 0.19.3, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: fill values and elements are
# compared by their bits. -x, x * -1 and x / -2 have the fill value -0.0, and concatenate and stack raise "This operation requires consistent
# fill-values"; 0 - x and x + -x have 0.0 again. COO.from_numpy of a negated array stores each -0.0: nnz is 9 for one
# number unequal to 0 in 9, nonzero returns all places, and to_scipy_sparse keeps them. Gradients behind a ReLU and weights after
# pruning by a multiplication have such zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 numba==0.68.1 sparse==0.19.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.sparse
import sparse

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("sparse", "scipy", "numpy")))
dense = np.zeros((3, 3), np.float32)
dense[0, 1] = 2
array = sparse.COO.from_numpy(dense)
arrays = {"x": (array, 0), "-x": (-array, 1), "x * -1": (array * -1, 1), "x / -2": (array / -2, 1), "0 - x": (0 - array, 0), "x + -x": (array + -array, 0)}
same = True
for name, (operand, fails) in arrays.items():
    errors = 0
    for join in (sparse.concatenate, sparse.stack):
        try:
            join([array, operand])
        except ValueError as error:
            errors += "consistent fill-values" in str(error)
    print(f"{name}: fill value {operand.fill_value}, {operand.nnz} stored, joined with x: {'ValueError' if errors else 'as expected'}")
    same &= errors == 2 * fails and bool(np.signbit(operand.fill_value)) == bool(fails) and operand.fill_value == 0
for name, values in (("dense", dense), ("-dense", -dense)):
    stored = sparse.COO.from_numpy(values)
    counts = stored.nnz, len(stored.nonzero()[0]), stored.to_scipy_sparse().nnz, scipy.sparse.coo_array(values).nnz, np.count_nonzero(values)
    print("{}: stored {}, nonzero {}, converted to SciPy {}, stored by SciPy {}, nonzero by NumPy {}".format(name, *counts))
    same &= counts == ((1,) * 5 if name == "dense" else (9, 9, 9, 1, 1))
if not same:
    sys.exit("the behaviour has changed")
print("as described: -0.0 is another fill value than 0.0, and is stored as a number")
PYTHON
