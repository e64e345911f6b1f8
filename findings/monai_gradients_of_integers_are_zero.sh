#!/usr/bin/env bash
# SobelGradients of MONAI returns zeros for each integer image, and RandHistogramShift returns integer images unchanged.
#
# Expected: the gradient 10 of a ramp with steps of 10, and the same shift of intensities, rounded, as for a float32 image, or an error.
# Seen with monai 1.6.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: MONAI converts the normalised Sobel kernels,
# which contain fractions, to the type of the image; they become zeros. It also converts the control points of the histogram shift, which
# lie between 0 and 1: all but the last become 0, and the first slope is 0 / 0. The smallest pixel of an int32 image becomes -2147483648,
# and other pixels keep their values. No warning is given: an augmentation has no effect, and an edge loss is zero.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 monai==1.6.1
cat > "$work/integers.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import torch
from monai.transforms import RandHistogramShift, SobelGradients

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "numpy")))
image = np.tile(np.arange(0, 100, 10), (1, 6, 1))
changed = False
for dtype in (torch.uint8, torch.int16, torch.int32, torch.float32):
    x = torch.as_tensor(image).to(dtype)
    gradient = SobelGradients()(x)[1, 3].tolist()
    shift = RandHistogramShift(num_control_points=4, prob=1)
    shift.set_random_state(1)
    shifted = shift(x)[0, 3].tolist()
    print(f"{dtype}: gradient {gradient}, shifted {[round(number) for number in shifted]}")
    if dtype == torch.float32:
        points = shift.reference_control_points * 90, shift.floating_control_points * 90
        expected = [0] + [10] * 8 + [0], np.interp(image[0, 3], *points)
        changed |= abs(expected[1] - image[0, 3]).max() < 5
    else:
        smallest = -(2**31) if dtype == torch.int32 else 0
        expected = [0] * 10, [smallest, *range(10, 100, 10)]
    changed |= not np.allclose(gradient, expected[0]) or not np.allclose(shifted, expected[1], atol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the gradients of integer images are zero, and their histograms are not shifted")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/integers.py"
