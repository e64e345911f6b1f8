#!/usr/bin/env bash
# The uncertainty of the square root of 4 +- 0.4 m of quantities is 0, that of its power -1 is -0.025, and that of 0 +- 0.1 m times 2 +- 0.1 m is not a number.
#
# Expected: 0.1, as from x ** 0.5, 0.025, as from 1 / x, and 0.2, as from the package uncertainties. Seen with quantities 0.16.4, uncertainties 3.2.3 and
# NumPy 2.4.6 on Linux: NumPy's sqrt drops the uncertainty, powers multiply by the exponent with its sign, and products by the result with its sign, so that standard
# deviations are negative for negative numbers too, and divide by 0 for 0. Weights 1 / u^2 of such numbers become infinite. Only the division
# by 0 gives a warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 uncertainties==3.2.3 quantities==0.16.4
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import quantities as pq
from uncertainties import ufloat, umath

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("quantities", "uncertainties", "numpy")))


def number(value, uncertainty):
    """Return one number in both libraries."""
    return pq.UncertainQuantity([value], "m", [uncertainty]), ufloat(value, uncertainty)


four, negative, zero, two = number(4, 0.4), number(-3, 0.1), number(0, 0.1), number(2, 0.1)
rows = {
    "4 ** 0.5": (four[0] ** 0.5, four[1] ** 0.5, 0.1),
    "sqrt(4)": (np.sqrt(four[0]), umath.sqrt(four[1]), 0),
    "1 / 4": (1 / four[0], 1 / four[1], 0.025),
    "4 ** -1": (four[0] ** -1, four[1] ** -1, -0.025),
    "4 * 2": (four[0] * two[0], four[1] * two[1], 0.8944272),
    "-3 * 2": (negative[0] * two[0], negative[1] * two[1], -0.3605551),
    "-3 / 2": (negative[0] / two[0], negative[1] / two[1], -0.0901388),
    "0 * 2": (zero[0] * two[0], zero[1] * two[1], np.nan),
    "0 / 2": (zero[0] / two[0], zero[1] / two[1], np.nan),
}
changed = False
for name, (own, other, described) in rows.items():
    value, uncertainty = float(own.magnitude[0]), float(own.uncertainty.magnitude[0])
    print(f"{name}: {value:g} +- {uncertainty:.7g}; by uncertainties {other.n:g} +- {other.s:.7g}")
    changed |= not np.isclose(uncertainty, described, rtol=1e-6, atol=1e-12, equal_nan=True) or not np.isclose(value, other.n)
    changed |= not np.isnan(described) and described != 0 and not np.isclose(abs(described), other.s, rtol=1e-6)
if changed:
    sys.exit("the behaviour has changed")
print("as described: uncertainties are zero, negative or not a number")
PYTHON
