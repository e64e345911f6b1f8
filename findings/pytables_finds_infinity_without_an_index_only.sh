#!/usr/bin/env bash
# PyTables' query "x > 1e39" of float32 finds infinity without an index of the column, and nothing with one.
#
# Expected: the same rows, because an index is there to make queries faster. Seen with PyTables 3.11.1,
# numexpr 2.14.2 and NumPy 2.4.6 on Linux: with an index the limit is turned into float32, where 1e39 is
# infinity, and without one numexpr compares in double precision. "x < -1e39" loses minus infinity in the same
# way. float64 columns are right. The only sign is NumPy's warning "overflow encountered in cast".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 numexpr==2.14.2 tables==3.11.1
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import tables

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tables", "numexpr", "numpy")))
numbers = np.array([0.25, 1.5, np.inf, -np.inf, -3])
conditions = ("x > 1", "x > 1e39", "x >= 1e39", "x < -1e39", "x < 1e39")
changed = False
for dtype in ("float32", "float64"):
    found = {}
    for indexed in (False, True):
        with tables.open_file("file.h5", "w") as file:
            table = file.create_table("/", "t", np.dtype([("x", dtype)]))
            rows = np.zeros(len(numbers), table.dtype)
            rows["x"] = numbers
            table.append(rows)
            table.flush()
            if indexed:
                table.cols.x.create_index()
            for condition in conditions:
                found[condition, indexed] = table.read_where(condition)["x"].tolist()
                changed |= bool(table.will_query_use_indexing(condition)) != indexed
    for condition in conditions:
        x = numbers.astype(dtype).astype("float64")
        right = x[eval(condition)].tolist()
        plain, indexed = found[condition, False], found[condition, True]
        print(f"{dtype}, {condition}: {plain} without an index, {indexed} with one, {right} by NumPy")
        changed |= plain != right
        lost = dtype == "float32" and condition in ("x > 1e39", "x >= 1e39", "x < -1e39")
        expected = [] if lost else right
        changed |= sorted(indexed) != sorted(expected)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the index turns the limit into infinity")
PYTHON
