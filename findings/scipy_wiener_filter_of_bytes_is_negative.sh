#!/usr/bin/env bash
# SciPy's Wiener filter turns a uint8 image with numbers from 8 to 208 into numbers from -234 to 418; as float64 it has 17 to 202.
#
# Expected: the result of the same image in float64, or an error for integers. Seen with SciPy 1.17.1 and NumPy 2.4.6 on Linux for scipy.signal.wiener:
# the local mean is computed in float64 and the local mean of the squares of the pixels from squares in uint8, which wrap around. int16 and
# uint16 do so from 182 and 256 on. The result is float64, so that nothing shows the type of the squares. Images are bytes, and
# audio is int16. savgol_filter and the filters of scipy.ndimage are right for them. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import scipy
from scipy import ndimage, signal

print(f"SciPy {scipy.__version__}, NumPy {np.__version__}")
noise = np.random.default_rng(0).normal(0, 3, (32, 32))
square = np.full((32, 32), 20)
square[8:24, 8:24] = 200
changed = False
for dtype, scale in (("uint8", 1), ("int16", 1), ("uint16", 100), ("int32", 100), ("float32", 1)):
    image = ((square + noise).round() * scale).astype(dtype)
    exact = image.astype(np.float64)
    # The border is left out: the filter pads with zeros.
    seen, right = (signal.wiener(pixels)[1:-1, 1:-1] for pixels in (image, exact))
    wrong = float((np.abs(seen - right) > 20 * scale).mean())
    print(
        f"{dtype}, {image.min():g} to {image.max():g}: {seen.min():.0f} to {seen.max():.0f}, {seen.dtype}; as float64 "
        f"{right.min():.0f} to {right.max():.0f}; {wrong:.0%} of the pixels differ by more than {20 * scale}"
    )
    changed |= wrong > 0 if dtype in ("int32", "float32") else wrong < 0.5 or seen.min() > -100 or seen.dtype != np.float64
    others = [signal.savgol_filter(image, 7, 2) - signal.savgol_filter(exact, 7, 2)]
    others.append(ndimage.uniform_filter(image, 3) - ndimage.uniform_filter(exact, 3))
    changed |= max(float(np.abs(other).max()) for other in others) > 2
if changed:
    sys.exit("the behaviour has changed")
print("as described: squares of integers wrap around")
PYTHON
