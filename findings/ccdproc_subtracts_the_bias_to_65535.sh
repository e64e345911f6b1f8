#!/usr/bin/env bash
# ccdproc subtracts a bias image of 1001 from a raw pixel of 1000 to 65535, and marks half of the pixels of a raw image as cosmic rays.
#
# Expected: -1, as with the mean of several bias images, and no cosmic rays, as for the same image as floats. Seen with ccdproc 2.5.1, Astropy 8.0.2
# and NumPy 2.4.6 on Linux: cameras write unsigned 16-bit numbers, Astropy reads them as uint16, and subtract_bias, subtract_dark,
# ccd_process and cosmicray_median subtract in that type. Each pixel below the bias becomes saturated, about half of a dark image.
# subtract_overscan and a dark image that is scaled by its exposure time compute in float64; flat_correct and combine do too. No warning is
# given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 astropy==8.0.2 ccdproc==2.5.1
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import astropy
import astropy.units
import ccdproc
import numpy as np
from astropy.io import fits
from astropy.nddata import CCDData

print(f"ccdproc {ccdproc.__version__}, Astropy {astropy.__version__}, NumPy {np.__version__}")


def camera(name, pixels):
    fits.PrimaryHDU(np.array(pixels, np.uint16)).writeto(f"{name}.fits")
    return CCDData.read(f"{name}.fits", unit="adu")


raw = camera("raw", [[1000, 1003], [998, 40000]])
bias = camera("bias", [[1001, 1001], [1001, 1001]])
second = 1 * astropy.units.s
wrapped, right = [[65535, 2], [65533, 38999]], [[-1, 2], [-3, 38999]]
rows = {
    "subtract_bias": (ccdproc.subtract_bias(raw, bias), wrapped),
    "subtract_dark": (ccdproc.subtract_dark(raw, bias, dark_exposure=second, data_exposure=second), wrapped),
    "ccd_process": (ccdproc.ccd_process(raw, master_bias=bias), wrapped),
    "subtract_bias with a mean of two": (ccdproc.subtract_bias(raw, ccdproc.combine([bias, bias])), right),
    "subtract_dark with scale": (ccdproc.subtract_dark(raw, bias, dark_exposure=second, data_exposure=second, scale=True), right),
    "subtract_overscan": (ccdproc.subtract_overscan(raw, overscan=bias, overscan_axis=1), right),
}
changed = raw.data.dtype != np.uint16
for name, (seen, expected) in rows.items():
    print(f"{name}: {raw.data.tolist()} becomes {seen.data.tolist()}, {seen.data.dtype}")
    changed |= seen.data.tolist() != expected
noise = np.random.default_rng(0).normal(1000, 10, (40, 40))
marked = {dtype: int(ccdproc.cosmicray_median(noise.astype(dtype), mbox=11, thresh=5)[1].sum()) for dtype in ("uint16", "float64")}
print(f"cosmicray_median of noise: pixels marked of {noise.size}: {marked}")
changed |= not 600 < marked["uint16"] < 1000 or marked["float64"] != 0
if changed:
    sys.exit("the behaviour has changed")
print("as described: differences of uint16 images wrap around")
PYTHON
