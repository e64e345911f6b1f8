#!/usr/bin/env bash
# numexpr's max of [9223372036854775807, 0] is 0, and the minimum and maximum of time stamps in nanoseconds are numbers that the array lacks.
#
# Expected: an element of the array, as from NumPy and as from numexpr's sum, prod and comparison, which keep all 64 bits. Seen with numexpr 2.14.2 and
# NumPy 2.4.6 on Linux: min and max of int64 convert each element to a double and back, and the result has the type int64. Numbers above 2**53 are rounded,
# and the largest ones lose to 0 or are the lowest number. abs of int64 is a double. No warning is given. Time stamps, hashes and identifiers have such sizes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numexpr==2.14.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numexpr
import numpy as np

print(f"numexpr {numexpr.__version__}, NumPy {np.__version__}")
rows = {
    "largest": ([2**63 - 1, 0], 0, -(2**63), 2**63 - 1),
    "2**53 + 1": ([2**53 + 1, 5], 2**53, 5, 2**53 + 6),
    "nanoseconds": ([1764522131123456789, 1764522131123456790], 1764522131123456768, 1764522131123456768, 3529044262246913579),
    "small": ([-7, 3, 2**52], 2**52, -7, 2**52 - 4),
}
changed = False
for name, (numbers, highest, lowest, total) in rows.items():
    a = np.array(numbers)
    seen = {what: numexpr.evaluate(f"{what}(a)", local_dict={"a": a}) for what in ("max", "min", "sum")}
    print(f"{name} {numbers}: max {seen['max']} ({a.max()}), min {seen['min']} ({a.min()}), sum {seen['sum']} ({a.sum()}), {seen['max'].dtype}")
    changed |= [int(seen[what]) for what in seen] != [highest, lowest, total] or seen["max"].dtype != np.int64
table = np.array([[1, 2], [3, 2**53 + 1]])
columns = numexpr.evaluate("max(table, axis=0)").tolist()
larger = numexpr.evaluate("table > 2**53").tolist()
magnitude = numexpr.evaluate("abs(table)").dtype
print(f"columns of {table.tolist()}: {columns}; above 2**53: {larger}; abs: {magnitude}")
changed |= columns != [3, 2**53] or larger != [[False, False], [False, True]] or magnitude != np.float64
if changed:
    sys.exit("the behaviour has changed")
print("as described: int64 passes through a double")
PYTHON
