#!/usr/bin/env bash
# fitsio writes the infinities of an image as NaN to a FITS file; those of a table it keeps.
#
# Expected: infinity, which the format's floats have, as from Astropy's writer, and as fitsio reads from such a file and writes in tables. Seen with fitsio
# 1.4.2, Astropy 8.0.2 and NumPy 2.4.6 on Linux, for float32 and float64 without compression and with "gzip". An image of weights or of variances has
# infinity for a pixel without a measurement or of no weight, and a ratio has it for a division by zero: 1 / infinity is 0, and 1 / NaN is NaN. The documentation does
# not name it, and no warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 astropy==8.0.2 fitsio==1.4.2
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import astropy
import fitsio
import numpy as np
from astropy.io import fits

print(f"fitsio {fitsio.__version__}, Astropy {astropy.__version__}, NumPy {np.__version__}")
numbers = np.array([[1, np.inf, -np.inf, np.nan, 3.25, 0]])
changed = False
for dtype in ("float32", "float64"):
    image = numbers.astype(dtype)
    fitsio.write("fitsio.fits", image, clobber=True)
    fits.writeto("astropy.fits", image, overwrite=True)
    fitsio.write("gzip.fits", image, clobber=True, compress="gzip", qlevel=0)
    table = np.zeros(6, [("x", dtype)])
    table["x"] = image[0]
    fitsio.write("table.fits", table, clobber=True)
    seen = {
        "written by fitsio, read by Astropy": fits.getdata("fitsio.fits"),
        "written and read by fitsio": fitsio.read("fitsio.fits"),
        "written with gzip": fitsio.read("gzip.fits"),
        "written by Astropy, read by fitsio": fitsio.read("astropy.fits"),
        "table by fitsio, read by Astropy": fits.getdata("table.fits")["x"],
        "table by fitsio": fitsio.read("table.fits")["x"],
    }
    for name, result in seen.items():
        kept = "table" in name or "by Astropy, read" in name
        print(f"{dtype}, {name}: {np.ravel(result).tolist()}")
        expected = image[0] if kept else np.where(np.isinf(image[0]), np.nan, image[0])
        changed |= not np.array_equal(np.ravel(result), expected, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: infinities of images are written as NaN")
PYTHON
