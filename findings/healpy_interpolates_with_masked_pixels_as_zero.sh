#!/usr/bin/env bash
# healpy interpolates a map of 10 in each valid pixel to 8.03 next to masked pixels, and to -3.2e29 if they have the marker UNSEEN.
#
# Expected: 10, the mean of the valid neighbours, or a masked value, as ud_grade and smoothing of healpy return. Seen with healpy 1.20.1 and NumPy
# 2.4.6 on Linux: get_interp_val, which "accepts masked arrays", leaves masked neighbours out of the sum, but not out of the weights. In a plain
# map they take part as the number -1.6375e30, and the sum is no longer UNSEEN, so that hp.ma and mask_bad find it valid.
# Rotator.rotate_map_pixel uses it: the rotated map has such pixels at the edges of the observed area, and a plot or a mean is
# spoilt by them. ud_grade averages integers in their own type: a map of the int16 number 20000 becomes 3616. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 healpy==1.20.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import healpy
import numpy as np

print(f"healpy {healpy.__version__}, NumPy {np.__version__}")
side = 8
colatitude, _ = healpy.pix2ang(side, np.arange(healpy.nside2npix(side)))
plain = np.where(colatitude < np.pi / 2 + 0.1, 10, healpy.UNSEEN)
masked = healpy.ma(plain)
angles, longitude = [np.pi / 2 - 0.1, np.pi / 2 + 0.1, np.pi / 2 + 0.4], 0.3
seen = np.ma.asarray(healpy.get_interp_val(masked, angles, longitude))
marked = healpy.get_interp_val(plain, angles, longitude)
print(f"masked array: {seen.tolist()}; with UNSEEN: {marked.tolist()}, masked by hp.ma: {healpy.mask_bad(marked).tolist()}")
changed = seen.mask.tolist() != [False, False, True] or not np.allclose(seen[:2].data, [10, 8.0278137])
changed |= healpy.mask_bad(marked).tolist() != [False, False, True] or not np.isclose(marked[1], -3.229455e29)
rotated = healpy.Rotator(rot=[10, 20]).rotate_map_pixel(plain)
wrong = ~healpy.mask_bad(rotated) & ~np.isclose(rotated, 10)
print(f"rotated map: {wrong.sum()} pixels are neither 10 nor masked, the largest of them is {rotated[wrong].max():.3g}")
changed |= not 20 < wrong.sum() < 100 or rotated[wrong].max() > -1e20
coarse, smooth = healpy.ud_grade(plain, side // 2), healpy.smoothing(plain, fwhm=0.2, use_pixel_weights=False)
print(f"ud_grade has the values {np.unique(coarse).tolist()}; smoothing masks {healpy.mask_bad(smooth).sum()} pixels")
changed |= np.unique(coarse).tolist() != [healpy.UNSEEN, 10] or not np.array_equal(healpy.mask_bad(smooth), healpy.mask_bad(plain))
for dtype, number, expected in (("uint8", 200, 8), ("int16", 20000, 3616), ("int32", 2**30, 0), ("float32", 20000, 20000)):
    degraded = healpy.ud_grade(np.full(plain.size, number, dtype), side // 2)
    print(f"ud_grade of {number} as {dtype}: {degraded[0]}")
    changed |= degraded.dtype != dtype or (degraded != expected).any()
if changed:
    sys.exit("the behaviour has changed")
print("as described: masked neighbours count as 0 or as -1.6375e30")
PYTHON
