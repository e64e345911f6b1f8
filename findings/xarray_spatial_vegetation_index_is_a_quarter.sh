#!/usr/bin/env bash
# The soil adjusted vegetation index of 0.5 in near infrared and 0.1 in red is 0.125 with xarray-spatial; by its definition it is 0.5.
#
# Expected: (1 + L) (NIR - R) / (NIR + R + L), by Huete (1988), who set L to 0.5 in most cases. Seen with xarray-spatial 0.5.3, xarray 2026.9.0 and
# NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: savi divides by 1 + L in the place of multiplying: the results are a quarter of the index for its default
# of 1, and 0.44 of it for 0.5. For L = 0 they are right, which its description gives as a check. Thresholds of other programs find no plants.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check xarray-spatial==0.5.3 xarray==2026.9.0 numpy==2.3.5 numba==0.68.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import xarray
from xrspatial.multispectral import savi

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("xarray-spatial", "xarray", "numpy")))
infrared, red = (xarray.DataArray(np.full((3, 3), value), dims=("y", "x")) for value in (0.5, 0.1))
same = True
for soil in (0.0, 0.5, 1.0):
    seen = float(savi(infrared, red, soil_factor=soil)[1, 1])
    right = (1 + soil) * (0.5 - 0.1) / (0.5 + 0.1 + soil)
    print(f"L = {soil}: {seen:.4f}, by the definition {right:.4f}")
    same &= bool(np.isclose(seen, right / (1 + soil) ** 2, atol=1e-4))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the index is divided by 1 + L")
PYTHON
