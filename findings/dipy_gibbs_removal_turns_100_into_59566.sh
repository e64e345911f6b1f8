#!/usr/bin/env bash
# DIPY's gibbs_removal turns a uint16 image with numbers from 81 to 336 into noise from 882 to 61416; as int16 or float it has 93 to 309.
#
# Expected: the result of the same image in float64, rounded, or an error for unsigned integers. Seen with DIPY 1.12.1, nibabel 5.4.2, NumPy 2.4.6
# and SciPy 1.17.1 on Linux. uint16 is a common type of files of diffusion images, and load_nifti of DIPY returns the type of the file, so
# the two lines of its tutorial are enough. Differences of neighbours wrap around where the local variation is computed, and the weights by it
# are computed in integers. int16 is truncated on the way and differs from float64 by more than 2. No warning is given, and the result is written
# into the array of the caller by default.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 nibabel==5.4.2 dipy==1.12.1
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import dipy
import nibabel
import numpy as np
from dipy.denoise.gibbs import gibbs_removal
from dipy.io.image import load_nifti

print(f"DIPY {dipy.__version__}, nibabel {nibabel.__version__}, NumPy {np.__version__}")
# A bright square as a scanner sees it: the low frequencies of a finer image, which have ringing at the edges.
fine = np.full((64, 64), 100.0)
fine[16:48, 16:48] = 300
spectrum = np.fft.fftshift(np.fft.fft2(fine))[24:40, 24:40]
ringing = np.abs(np.fft.ifft2(np.fft.ifftshift(spectrum)) / 16).round()
results = {}
for dtype in ("float64", "float32", "int16", "uint16", "uint8"):
    image = ringing.clip(0, 255) if dtype == "uint8" else ringing
    nibabel.Nifti1Image(np.stack([image, image], 2).astype(dtype), np.eye(4)).to_filename(f"{dtype}.nii")
    data, _ = load_nifti(f"{dtype}.nii")
    results[dtype] = gibbs_removal(data, inplace=False, num_processes=1)[..., 0]
    seen = results[dtype]
    print(f"{data.dtype}: {image.min():.0f} to {image.max():.0f} becomes {seen.min():.0f} to {seen.max():.0f}, {seen.dtype}")
exact = results["float64"]
errors = {dtype: float(np.abs(result - exact).max()) for dtype, result in results.items()}
print(f"first row of uint16: {results['uint16'][0, :5].tolist()}, of float64: {exact[0, :5].round(1).tolist()}; largest errors: {errors}")
changed = not (90 < exact.min() and exact.max() < 320 and errors["float32"] < 0.1 and 1.5 < errors["int16"] < 4)
changed |= errors["uint16"] < 10000 or results["uint8"].min() > 20
if changed:
    sys.exit("the behaviour has changed")
print("as described: unsigned images become noise")
PYTHON
