#!/usr/bin/env bash
# In an array of APyTypes, infinity is unequal to itself and greater than itself, and NaN is greater than each number; single numbers compare otherwise.
#
# Expected: the comparisons of IEEE 754, as NumPy and ml_dtypes have them for the same formats: inf == inf is true, and each comparison with NaN
# but != is false. Seen with apytypes 0.5.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30, for APyFloatArray with another array, an APyFloat or a Python
# number: > is computed as "not <=" and >= as "not <". In an APyFloat, infinity is right and NaN != x is false for each x, so that neither == nor != is true. The arithmetic
# of all pairs of float8_e5m2 and the conversions to five formats agree with ml_dtypes, so that only the comparisons show the difference. A test
# that two arrays are equal fails after an overflow, and a count of elements above a limit counts the NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 apytypes==0.5.1
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import operator
import sys

import apytypes
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("apytypes", "numpy")))
inf, nan = float("inf"), float("nan")
operators = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
pairs = {"inf, inf": (inf, inf), "nan, nan": (nan, nan), "nan, 1": (nan, 1.0), "1, nan": (1.0, nan), "2, 1": (2.0, 1.0)}
of_arrays = {"inf, inf": "!= > >=", "nan, nan": "!= > >=", "nan, 1": "!= > >=", "1, nan": "!= > >=", "2, 1": "!= > >="}
of_numbers = {"inf, inf": "== <= >=", "nan, nan": "", "nan, 1": "", "1, nan": "", "2, 1": "!= > >="}
same = True
for exponent, mantissa in ((5, 2), (5, 10), (8, 23)):
    for name, (left, right) in pairs.items():
        numbers = [apytypes.APyFloat.from_float(value, exponent, mantissa) for value in (left, right)]
        arrays = [apytypes.APyFloatArray.from_float([value], exponent, mantissa) for value in (left, right)]
        true = " ".join(sign for sign, compare in operators.items() if compare(*arrays)[0])
        mixed = " ".join(sign for sign, compare in operators.items() if compare(arrays[0], right)[0])
        single = " ".join(sign for sign, compare in operators.items() if compare(*numbers))
        print(f"{exponent} and {mantissa} bits, {name}: true in arrays: {true or 'none'}; as numbers: {single or 'none'}")
        same &= true == mixed == of_arrays[name] and single == of_numbers[name]
if not same:
    sys.exit("the behaviour has changed")
print("as described: infinity is unequal to itself in an array, and NaN is greater than 1")
PYTHON
