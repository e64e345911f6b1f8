#!/usr/bin/env bash
# unyt's exponential of 50 percent is 5.2e21, which is that of 50: 1.65 is that of a half. That of 5 kg is 148.
#
# Expected: the scale of a unit counts, as in 1 - x, comparisons and arctan2 of unyt, and as for 5 m / 10 m; and an error for a mass. Seen with unyt 3.2.0 and
# NumPy 2.4.6 on Linux: exp, log, tanh and powers of two take the bare number of a percentage, and of any unit. sin and cos do convert degrees, and
# the sum of a mass and a number raises an error. einsum("i,i", x, x) of metres is in metres, while dot is in square metres. No warning is given. Humidity,
# efficiency and concentration are stored in percent.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 unyt==3.2.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import numpy as np
import unyt
from unyt import unyt_array, unyt_quantity

print(f"unyt {unyt.__version__}, NumPy {np.__version__}")
percent = unyt_quantity(50.0, "percent")
half = percent.to("dimensionless")
changed = False
for function in (np.exp, np.log, np.log10, np.log1p, np.tanh, np.exp2):
    seen, right, number = float(function(percent)), float(function(half)), float(function(50.0))
    print(f"{function.__name__}(50 percent) = {seen:.6g}; of the same, converted: {right:.6g}; of 50: {number:.6g}")
    changed |= seen != number or not np.isclose(right, function(0.5))
rest, angle = float(1 - percent), float(np.arctan2(percent, 1))
ratio = float(np.exp(unyt_quantity(5.0, "m") / unyt_quantity(1000.0, "cm")))
sine = float(np.sin(unyt_quantity(90.0, "degree")))
print(f"1 - x {rest}, x == 0.5 {percent == 0.5}, arctan2(x, 1) {angle:.6f}, exp(5 m / 1000 cm) {ratio:.6f}, sin(90 degrees) {sine}")
changed |= rest != 0.5 or not percent == 0.5 or not np.isclose(angle, np.arctan(0.5)) or not np.isclose(ratio, np.exp(0.5)) or sine != 1
mass = float(np.exp(unyt_quantity(5.0, "kg")))
lengths = unyt_array([1.0, 2.0], "m")
print(f"exp(5 kg) = {mass:.6g}; einsum of metres {np.einsum('i,i', lengths, lengths)}, dot {np.dot(lengths, lengths)}")
changed |= not np.isclose(mass, np.exp(5)) or str(np.einsum("i,i", lengths, lengths).units) != "m" or str(np.dot(lengths, lengths).units) != "m**2"
try:
    unyt_quantity(5.0, "kg") + 1
except unyt.exceptions.UnitOperationError as error:
    print(f"5 kg + 1: {type(error).__name__}")
else:
    changed = True
if changed:
    sys.exit("the behaviour has changed")
print("as described: the scale of the unit is not used")
PYTHON
