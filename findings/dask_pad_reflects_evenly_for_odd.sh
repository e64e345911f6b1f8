#!/usr/bin/env bash
# Dask's pad ignores reflect_type="odd": 3, 1, 2, 7 begins with 2, 1 for NumPy's 4, 5, so a padded ramp turns around at its ends.
#
# Expected: NumPy's result, 2 * edge - reflected value, or an error. The docstring is NumPy's, with reflect_type among the arguments. Seen with dask 2026.8.0 and
# NumPy 2.4.6 on 2026-11-30: dask.array.pad looks for an argument named "reflect" where NumPy's is "reflect_type", and "odd" is taken as "even" with the modes
# reflect and symmetric. Its own error for "odd" is not reached. numpy.pad of a Dask array calls the same function.
# No warning is given. An odd reflection is used in front of filters, because it keeps the slope; the even one bends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 'dask[array]==2026.8.0'
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import dask.array
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dask", "numpy")))
same = True
for numbers in ([3, 1, 2, 7], [0.0, 1.0, 2.0, 3.0, 4.0]):
    array = np.array(numbers)
    for mode in ("reflect", "symmetric"):
        even, odd = (np.pad(array, 2, mode=mode, reflect_type=kind) for kind in ("even", "odd"))
        seen = dask.array.pad(dask.array.from_array(array, chunks=2), 2, mode=mode, reflect_type="odd").compute()
        through = np.pad(dask.array.from_array(array, chunks=2), 2, mode=mode, reflect_type="odd")
        print(f"{numbers}, {mode}, odd: Dask {seen.tolist()}, NumPy {odd.tolist()}")
        same &= np.array_equal(seen, even) and not np.array_equal(seen, odd)
        same &= type(through) is dask.array.Array and np.array_equal(through.compute(), even)
if not same:
    sys.exit("the behaviour has changed")
print("as described: the reflection is even")
PYTHON
