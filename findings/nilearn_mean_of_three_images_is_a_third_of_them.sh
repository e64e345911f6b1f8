#!/usr/bin/env bash
# nilearn's mean_img of three equal images of 250 (uint8) is 79.33, and that of three int16 images of 20000 is -1845.33.
#
# Expected: 250 and 20000, as for one image with the same three volumes, for the same images as four-dimensional ones, and for a pattern of
# file names. Seen with nilearn 0.14.1, nibabel 5.4.2 and NumPy 2.4.6 on Linux for a list of images or of files with one volume each: they are
# added in the type of the first one, and the sum is divided in float64 after that. int16 is the common type of MRI and CT files, where three
# values above 10922 wrap around. The mean is a reference for registration and for masks. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 nibabel==5.4.2 scikit-learn==1.9.1 pandas==3.1.1 \
    nilearn==0.14.1
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import nibabel
import nilearn
import numpy as np
from nilearn.image import concat_imgs, mean_img

print(f"nilearn {nilearn.__version__}, nibabel {nibabel.__version__}, NumPy {np.__version__}")


def mean(images):
    return float(mean_img(images, copy_header=True).get_fdata()[0, 0, 0])


changed = False
for dtype, value, expected in (("uint8", 250, 238 / 3), ("int16", 20000, -5536 / 3), ("uint16", 40000, 54464 / 3), ("float32", 20000, 20000)):
    names = [f"{dtype}{index}.nii" for index in range(3)]
    images = [nibabel.Nifti1Image(np.full((2, 2, 2), value, dtype), np.eye(4)) for _ in names]
    for image, name in zip(images, names, strict=True):
        image.to_filename(name)
    series = [nibabel.Nifti1Image(np.full((2, 2, 2, 4), value, dtype), np.eye(4)) for _ in range(3)]
    listed = mean(images), mean(names)
    others = mean(concat_imgs(images)), mean(f"{dtype}*.nii"), mean(series)
    print(f"{dtype}: {listed[0]:.2f} for images, {listed[1]:.2f} for files; one image, a pattern, series: {others}")
    changed |= not np.allclose(listed, expected) or others != (value,) * 3
if changed:
    sys.exit("the behaviour has changed")
print("as described: the sum of the images wraps around")
PYTHON
