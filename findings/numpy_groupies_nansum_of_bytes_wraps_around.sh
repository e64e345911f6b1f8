#!/usr/bin/env bash
# numpy-groupies' nansum of the bytes 200 and 100 is 44, and its sum is 300.
#
# Expected: equal sums for numbers without NaN, as of NumPy's sum and nansum, and as of the library's engine
# in Python alone, which has 300 and 2 for both. Seen with numpy-groupies 0.16.0 and NumPy 2.4.6 on Linux for
# the default engine: sum widens the type, nansum keeps it, so that nansum of True and True is True. The
# README says that integer sums accumulate in a type wide enough not to wrap around, and that all engines give
# the same results. Flags are counted by their sum, and labels in images have bytes. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 numpy-groupies==0.16.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import numpy_groupies

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy-groupies", "numpy")))
labels = np.array([0, 0, 1, 1, 1])
changed = False
for dtype, numbers, nansum in (
    ("uint8", [200, 100, 127, 3, 250], [44, 124]),
    ("int8", [100, 100, -100, -100, 3], [-56, 59]),
    ("int16", [30000, 30000, 1, 2, 3], [-5536, 6]),
    ("bool", [True, True, True, False, True], [True, True]),
    ("float64", [200, 100, 127, 3, 250], [300, 380]),
):
    values = np.array(numbers, dtype)
    right = [int(values[labels == label].sum()) for label in (0, 1)]
    assert right == [int(np.nansum(values[labels == label])) for label in (0, 1)]
    seen = {}
    for engine, function in (("NumPy", numpy_groupies.aggregate_np), ("Python", numpy_groupies.aggregate_py)):
        for name in ("sum", "nansum"):
            seen[engine, name] = np.asarray(function(labels, values, name)).tolist()
    shown = [f"{name} by {engine} {sums}" for (engine, name), sums in seen.items()]
    print(f"{dtype} {numbers}: " + ", ".join(shown))
    changed |= seen["NumPy", "sum"] != right or seen["NumPy", "nansum"] != nansum
    changed |= seen["Python", "sum"] != right or seen["Python", "nansum"] != right
    for name in ("sum", "nansum"):
        changed |= np.asarray(numpy_groupies.aggregate(labels, values, name)).tolist() != seen["NumPy", name]
if changed:
    sys.exit("the behaviour has changed")
print("as described: nansum wraps around, and sum does not")
PYTHON
