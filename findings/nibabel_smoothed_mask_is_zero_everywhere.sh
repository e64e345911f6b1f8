#!/usr/bin/env bash
# nibabel's smooth_image of a mask of zeros and ones is zero everywhere if the mask is uint8; as float32 it has values up to 0.93.
#
# Expected: fractions, as for the same mask in float32 and as for the same file with a slope in its header, or an error. Seen with nibabel 5.4.2, SciPy 1.17.1
# and NumPy 2.4.6 on Linux: the Gaussian filter writes into the type of the data and truncates, so that each voxel below 1 becomes 0, and other images get
# darker by 0.8 on average. resample_to_output, resample_from_to and conform round instead. The documentation names no type. Masks and label
# images are mostly uint8 or int16, and smoothing them is how probability maps and soft edges are made. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 nibabel==5.4.2
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import nibabel
import numpy as np
import scipy.ndimage
from nibabel.processing import resample_to_output, smooth_image

print(f"nibabel {nibabel.__version__}, SciPy {scipy.__version__}, NumPy {np.__version__}")
mask = np.zeros((12, 12, 12))
mask[3:9, 3:9, 3:9] = 1
sigma = 6 / np.sqrt(8 * np.log(2)) / 2
right = scipy.ndimage.gaussian_filter(mask, sigma, mode="nearest")


def smoothed(dtype, stored=None):
    image = nibabel.Nifti1Image(mask.astype(dtype), np.diag([2, 2, 2, 1]))
    image.set_data_dtype(stored or dtype)
    image.to_filename("mask.nii")
    return np.asarray(smooth_image(nibabel.load("mask.nii"), 6).dataobj)


changed = abs(right.max() - 0.9286) > 0.001
print(f"by the Gaussian filter: 0 to {right.max():.4f}, mean {right.mean():.4f}")
for dtype in ("uint8", "int16", "float32"):
    seen = smoothed(dtype)
    print(f"{dtype}: {seen.min():.4f} to {seen.max():.4f}, mean {seen.mean():.4f}, {seen.dtype}")
    changed |= seen.any() if dtype != "float32" else not np.allclose(seen, right, atol=1e-5)
scaled = smoothed("float64", stored="uint8")
print(f"uint8 with a slope, {nibabel.load('mask.nii').dataobj.slope:.6f}: {scaled.min():.4f} to {scaled.max():.4f}, {scaled.dtype}")
changed |= not np.allclose(scaled, right, atol=1e-5)
image = nibabel.Nifti1Image((mask * 200).astype(np.uint8), np.diag([2, 2, 2, 1]))
offset = np.asarray(smooth_image(image, 6).dataobj).mean() - 200 * right.mean()
fine = np.asarray(resample_to_output(image, [1.3] * 3, order=1).dataobj)
exact = np.asarray(resample_to_output(nibabel.Nifti1Image(mask * 200, image.affine), [1.3] * 3, order=1).dataobj)
print(f"image of 0 and 200: mean {offset:+.2f} after smooth_image, largest difference after resample_to_output {np.abs(fine - exact).max():.2f}")
changed |= not -1 < offset < -0.7 or np.abs(fine - exact).max() > 0.51
if changed:
    sys.exit("the behaviour has changed")
print("as described: smoothing truncates to the type of the data")
PYTHON
