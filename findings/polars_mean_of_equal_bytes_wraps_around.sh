#!/usr/bin/env bash
# In Polars, mean_horizontal of three UInt8 columns with 255 is 84.33, and that of two Int16 columns with 30000 is -2768.
#
# Expected: 255 and 30000, as the mean down a column, the mean of a list and the mean of an array of the same type are. Seen with polars 2.1.0 and
# NumPy 2.4.6 (x86-64 Linux) on 2026-11-29, eager and lazy: the sum wraps around in the type of the columns and is divided as
# Float64. Int32 and Float16 are affected too. The dot product of a UInt8 series of 200 and 100 with itself is 80 in place of 50000. The
# docstrings do not mention the type of the sum. The grey value of an RGB pixel is wrong from a sum of 256 on, and no warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 polars==2.1.0
cat > "$work/mean.py" <<'PYTHON'
import importlib.metadata
import math
import sys

import polars as pl

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("polars", "numpy")))
cases = [
    (pl.UInt8, [255, 255, 255], 253 / 3),
    (pl.UInt8, [200, 100, 30], 74 / 3),
    (pl.UInt8, [10, 20, 30], 20),
    (pl.Int8, [100, 100], -28),
    (pl.Int16, [30000, 30000], -2768),
    (pl.Int32, [2**31 - 1, 2**31 - 1], -1),
    (pl.Float16, [60000, 60000], math.inf),
]
changed = False
for dtype, values, expected in cases:
    frame = pl.DataFrame({f"c{place}": [value] for place, value in enumerate(values)}).cast(dtype)
    seen = frame.mean_horizontal().item()
    lazy = frame.lazy().select(pl.mean_horizontal(pl.all())).collect().item()
    column = pl.Series(values).cast(dtype).mean()
    array = frame.select(pl.concat_list(pl.all()).list.mean()).item() if dtype != pl.Float16 else column
    correct = sum(values) / len(values)
    print(f"{dtype} {values}: mean_horizontal {seen:.6g}, lazy {lazy:.6g}, mean of a column {column:.6g}, of a list {array:.6g}")
    changed |= not math.isclose(seen, expected) or lazy != seen or [column, array] != [correct, correct]
bytes_ = pl.Series([200, 100], dtype=pl.UInt8)
product = bytes_.dot(bytes_)
print(f"dot product of UInt8 [200, 100] with itself: {product}")
if changed or product != 80:
    sys.exit("the behaviour has changed")
print("as described: the mean of equal bytes is another number")
PYTHON
"$work/venv/bin/python" "$work/mean.py"
