#!/usr/bin/env bash
# fastparquet writes a column of 2026-11-30 in seconds as 1970-01-01; with times="int96", columns in microseconds become 1970 too.
#
# Expected: the same times, as for columns in milliseconds, microseconds and nanoseconds by default, or an error. Seen with fastparquet 2026.9.0, pandas
# 3.1.1, PyArrow 26.0.1 and NumPy 2.4.6 on Linux: the number of seconds is divided by 1000 and written as milliseconds, and times="int96", for old
# readers, takes the numbers of all units as nanoseconds. pandas has the unit seconds for times of datetime64[s] and [D] from NumPy, and microseconds by
# default since version 3. Other readers see the wrong times; fastparquet itself raises an error for some. No warning is given on writing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1 fastparquet==2026.9.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import fastparquet
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

print(f"fastparquet {fastparquet.__version__}, pandas {pandas.__version__}, PyArrow {pyarrow.__version__}, NumPy {np.__version__}")
times = ["2026-11-30T17:00:00", "2024-02-29T00:00:00"]
right = [np.datetime64(time, "ns") for time in times]
factors = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
changed = False
for unit in factors:
    frame = pandas.DataFrame({"time": np.array(times, f"datetime64[{unit}]")})
    for kind in ("int64", "int96"):
        fastparquet.write("times.parquet", frame, times=kind)
        seen = pyarrow.parquet.read_table("times.parquet").column("time").cast(pyarrow.timestamp("ns")).to_numpy()
        print(f"{frame['time'].dtype}, times={kind!r}: {times[0]} becomes {seen[0]}")
        divided = factors[unit] if kind == "int96" else 10**6 if unit == "s" else 1
        described = [np.datetime64(int(time.astype(np.int64)) // divided, "ns") for time in right]
        changed |= np.abs(seen - np.array(described)).max() >= np.timedelta64(1, "ms")
    fastparquet.write("times.parquet", frame)
parsed = pandas.to_datetime(times).dtype, pandas.Series(np.array(["2026-11-30"], "datetime64[D]")).dtype
print(f"pandas: {parsed[0]} from strings, {parsed[1]} from days of NumPy")
changed |= parsed[0] != "datetime64[us]" or parsed[1] != "datetime64[s]"
if changed:
    sys.exit("the behaviour has changed")
print("as described: seconds are divided and written as milliseconds, and all units as nanoseconds")
PYTHON
