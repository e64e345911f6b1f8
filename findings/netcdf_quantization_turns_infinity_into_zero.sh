#!/usr/bin/env bash
# netCDF's quantization of three significant digits turns infinity into 0 or NaN: Granular BitRound into -0, BitGroom into NaN at odd places.
#
# Expected: infinity, as from BitRound, the third method, and as for a NaN, which all three keep. Seen with netCDF4 1.7.5.1.post1 (netCDF-C 4.10.1),
# xarray 2026.9.0, imagecodecs 2026.3.6 and NumPy 2.4.6 on Linux: Granular BitRound writes infinity as -0.0 and minus infinity as 0.0; BitGroom
# sets the last bits of each second number, with which infinity becomes NaN, and clears those of the others. xarray's encoding has the same
# results, and float64 too. quantize_encode of imagecodecs has the method in an older form, in which a NaN becomes -0.0 too. An overflow, or
# a quantity without a limit, is read as a valid zero. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 netCDF4==1.7.5.1.post1 xarray==2026.9.0 \
    imagecodecs==2026.3.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import imagecodecs
import netCDF4
import numpy as np
import xarray

print(f"netCDF4 {netCDF4.__version__} with netCDF-C {netCDF4.__netcdf4libversion__.split()[0]}, xarray {xarray.__version__}")
inf, nan = np.inf, np.nan
numbers = np.array([inf, inf, -inf, -inf, nan, nan, 2.5, -0.5])
rows = {
    "GranularBitRound": [-0.0, -0.0, 0.0, 0.0, nan, nan, 2.5, -0.5],
    "BitGroom": [inf, nan, -inf, nan, nan, nan, 2.5, -0.5],
    "BitRound": [inf, inf, -inf, -inf, nan, nan, 2.5, -0.5],
}
changed = False
for method, expected in rows.items():
    for dtype in ("float32", "float64"):
        options = {"significant_digits": 3, "quantize_mode": method}
        with netCDF4.Dataset(f"{method}.{dtype}.nc", "w") as file:
            file.createDimension("x", numbers.size)
            variable = file.createVariable("y", dtype, ("x",), compression="zlib", **options)
            variable[:] = numbers
        with netCDF4.Dataset(f"{method}.{dtype}.nc") as file:
            file.set_auto_mask(False)
            seen = np.asarray(file["y"][:], np.float64)
        data = xarray.Dataset({"y": ("x", numbers.astype(dtype))})
        data.to_netcdf(f"{method}.{dtype}.xarray.nc", engine="netcdf4", encoding={"y": {"compression": "zlib", **options}})
        with xarray.open_dataset(f"{method}.{dtype}.xarray.nc", engine="netcdf4") as opened:
            again = np.asarray(opened["y"].values, np.float64)
        print(f"{method}, {dtype}: {seen.tolist()}")
        for result in (seen, again):
            changed |= not np.allclose(result, expected, rtol=5e-3, equal_nan=True)
            changed |= not np.array_equal(np.signbit(result)[[0, 1, 2, 6, 7]], np.signbit(np.array(expected))[[0, 1, 2, 6, 7]])
older = imagecodecs.quantize_encode(numbers.astype(np.float32), mode="granularbr", nsd=3)
print(f"granularbr of imagecodecs: {older.tolist()}")
changed |= not np.array_equal(older, np.array([0, 0, 0, 0, 0, 0, 2.5, -0.5], np.float32))
if changed:
    sys.exit("the behaviour has changed")
print("as described: infinity becomes 0 or NaN")
PYTHON
