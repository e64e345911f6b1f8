#!/usr/bin/env bash
# With Bottleneck installed, the median of int32 timestamps is -383017448 in pandas for times between 1764460800 and 1764471600.
#
# Expected: 1764466200, as without Bottleneck and as from NumPy, or at least a number between the smallest and the largest. Seen with pandas 3.1.1,
# Bottleneck 1.6.0 and NumPy 2.4.6 on Linux: for an even count, the two numbers in the middle are added in the type of the array and halved
# after that. Above 2**30 the sum wraps around: Unix times in seconds are larger, and so are many counts and fixed-point numbers. An
# odd count is right, and so are groupby, rolling, describe and quantile of the same column, and the nullable type Int32. pandas uses Bottleneck
# as soon as it is installed, for instance as a requirement of another package. bn.median and bn.nanmedian have the same result, and int64
# numbers from 2**62 on become negative too. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pandas==3.1.1 bottleneck==1.6.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import bottleneck
import numpy as np
import pandas as pd

print(f"pandas {pd.__version__}, Bottleneck {bottleneck.__version__}, NumPy {np.__version__}")
times = np.array([1764460800, 1764464400, 1764468000, 1764471600], np.int32)
column = pd.Series(times)
with pd.option_context("compute.use_bottleneck", False):
    without = float(column.median())
middle, wrapped = 1764466200.0, -383017448.0
rows = {
    "column.median()": (float(column.median()), wrapped),
    "frame.median()": (float(pd.DataFrame({"time": column}).median().iloc[0]), wrapped),
    "bottleneck.median": (float(bottleneck.median(times)), wrapped),
    "bottleneck.nanmedian": (float(bottleneck.nanmedian(times)), wrapped),
    "column.median() without Bottleneck": (without, middle),
    "numpy.median": (float(np.median(times)), middle),
    "column.quantile(0.5)": (float(column.quantile(0.5)), middle),
    "column.describe()": (float(column.describe()["50%"]), middle),
    "column.groupby(...).median()": (float(column.groupby([0, 0, 0, 0]).median().iloc[0]), middle),
    "column.rolling(4).median()": (float(column.rolling(4).median().iloc[-1]), middle),
    "median of the type Int32": (float(column.astype("Int32").median()), middle),
    "median of the first three": (float(column[:3].median()), 1764464400.0),
    "bottleneck.median of 2**62 and 2**62 + 2": (float(bottleneck.median(np.array([2**62, 2**62 + 2]))), -float(2**62)),
}
changed = False
for name, (seen, expected) in rows.items():
    print(f"{name}: {seen:.0f}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: the sum of the two numbers in the middle wraps around")
PYTHON
