#!/usr/bin/env bash
# In Pint, np.remainder of 1 m and 30 cm is 1 m, and 1 m % (30 cm) is 0.1 m; np.sum with an initial value of 50 cm adds 50 m.
#
# Expected: 0.1 m by both ways, as np.maximum, np.hypot and np.clip convert their operands to one unit, or an error for a function that
# is not supported, as for np.divmod. Seen with pint 0.25.3 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: np.remainder, np.mod and np.fmod
# compute with the numbers and give the result the unit of the first operand, in place of a conversion: 370 degrees modulo one turn is 0
# degrees, and a remainder of a length by a time is a length. The values initial of np.sum and np.nansum and prepend and append of np.diff
# are read without their units too. np.max, np.min, np.pad and np.interp convert. No warning is given. A function that is written with the
# names of NumPy in place of the operator returns other results.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pint==0.25.3
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import pint

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pint", "numpy")))
Q = pint.UnitRegistry().Quantity
x, centimetres, seconds = Q(np.array([1.0, 2.0]), "m"), Q(30.0, "cm"), Q(2.0, "s")
angles, turn = Q(np.array([370.0, 20.0]), "deg"), Q(1.0, "turn")
rows = {
    "x % 30 cm": (lambda: x % centimetres, "m", [0.1, 0.2]),
    "np.remainder(x, 30 cm)": (lambda: np.remainder(x, centimetres), "m", [1, 2]),
    "np.mod(x, 30 cm)": (lambda: np.mod(x, centimetres), "m", [1, 2]),
    "np.fmod(x, 30 cm)": (lambda: np.fmod(x, centimetres), "m", [1, 2]),
    "angles % 1 turn": (lambda: angles % turn, "deg", [10, 20]),
    "np.mod(angles, 1 turn)": (lambda: np.mod(angles, turn), "deg", [0, 0]),
    "np.remainder(x, 2 s)": (lambda: np.remainder(x, seconds), "m", [1, 0]),
    "np.sum(x)": (lambda: np.sum(x), "m", 3),
    "np.sum(x, initial=50 cm)": (lambda: np.sum(x, initial=Q(50.0, "cm")), "m", 53),
    "np.nansum(x, initial=50 cm)": (lambda: np.nansum(x, initial=Q(50.0, "cm")), "m", 53),
    "np.diff(x, prepend=50 cm)": (lambda: np.diff(x, prepend=Q(50.0, "cm")), "m", [-49, 1]),
    "np.max(x, initial=500 cm)": (lambda: np.max(x, initial=Q(500.0, "cm")), "m", 5),
    "np.hypot(3 m, 400 cm)": (lambda: np.hypot(Q(3.0, "m"), Q(400.0, "cm")), "m", 5),
    "np.clip(x, 0 m, 150 cm)": (lambda: np.clip(x, Q(0.0, "m"), Q(150.0, "cm")), "m", [1, 1.5]),
}
changed = False
for name, (function, unit, expected) in rows.items():
    seen = function()
    print(f"{name}: {seen:~}")
    changed |= seen.units != Q(1, unit).units or not np.allclose(seen.magnitude, expected)
try:
    x % seconds
except pint.DimensionalityError as error:
    print(f"x % 2 s: {type(error).__name__}")
else:
    changed = True
if changed:
    sys.exit("the behaviour has changed")
print("as described: the function ignores the units that the operator converts")
PYTHON
