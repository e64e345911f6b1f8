#!/usr/bin/env bash
# Cubed returns the rows 0, 1, 2 and 3 for the index [3, 2, 1, 0]: an index as long as the axis is ignored.
#
# Expected: the rows that the index names, as NumPy has them, and as Cubed has them for each index that is
# shorter or longer than the axis. Seen with cubed 0.27.0, Zarr 3.1.6 and NumPy 2.4.6 on Linux, for brackets
# and for take, for each size of chunks: an index that leaves the shape as it is counts as one that does
# nothing. A permutation, as of a shuffle or of a sort, and a bootstrap sample have this length. The shape is
# right. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 zarr==3.1.6 cubed==0.27.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import cubed
import cubed.array_api as xp
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("cubed", "zarr", "numpy")))
spec = cubed.Spec(work_dir="work", allowed_mem="500MB")
rows = np.array([[10, 0], [20, 0], [30, 0], [40, 0]])
changed = False
for chunks in ((4, 2), (2, 1)):
    array = cubed.from_array(rows, chunks=chunks, spec=spec)
    for index in ([0, 0], [2, 0], [3, 1, 2], [3, 2, 1, 0], [0, 0, 0, 0], [1, 3, 0, 2], [3, 2, 1, 0, 0]):
        right = rows[index][:, 0].tolist()
        brackets = array[index].compute()[:, 0].tolist()
        taken = xp.take(array, np.array(index), axis=0).compute()[:, 0].tolist()
        print(f"chunks {chunks}, index {index}: brackets {brackets}, take {taken}, NumPy {right}")
        expected = rows[:, 0].tolist() if len(index) == len(rows) else right
        changed |= brackets != expected or taken != expected
samples = cubed.from_array(np.array([0.5, 0.1, 0.3]), chunks=2, spec=spec)
order = np.argsort([0.5, 0.1, 0.3])
ordered = samples[order].compute().tolist()
print(f"[0.5, 0.1, 0.3] in the order {order.tolist()} of a sort: {ordered}")
changed |= ordered != [0.5, 0.1, 0.3]
if changed:
    sys.exit("the behaviour has changed")
print("as described: an index as long as the axis is ignored")
PYTHON
