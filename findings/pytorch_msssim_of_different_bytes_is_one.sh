#!/usr/bin/env bash
# pytorch-msssim returns 1.0, the value for equal images, for any two uint8 images, a black one and a white one included.
#
# Expected: the SSIM of the same images as floats, 0.01 for noise, or an error. Seen with pytorch-msssim 1.0.0, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64
# Linux) on 2026-11-29: the Gaussian window is converted to the type of the images, and its weights, which are below 1, become 0. Other
# integer types have the same result; ms_ssim raises an error. The argument data_range is 255 by default, the range of uint8 images.
# No warning is given. A test that compares a decoded image with a reference by SSIM passes in any case.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pytorch-msssim==1.0.0
cat > "$work/similarity.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from pytorch_msssim import ssim

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pytorch-msssim", "torch")))
torch.manual_seed(0)
noise, other = torch.randint(0, 256, (2, 1, 3, 192, 192), dtype=torch.uint8)
pairs = {
    "noise and other noise": (noise, other),
    "black and white": (torch.zeros_like(noise), torch.full_like(noise, 255)),
    "an image and its negative": (noise, 255 - noise),
    "an image and itself": (noise, noise),
}
changed = False
for name, (x, y) in pairs.items():
    types = (torch.float32, torch.uint8, torch.int16, torch.int32)
    values = {dtype: float(ssim(x.to(dtype), y.to(dtype))) for dtype in types}
    print(f"SSIM of {name}: " + ", ".join(f"{dtype} {value:.4f}" for dtype, value in values.items()))
    changed |= any(values[dtype] != 1 for dtype in types[1:])
    changed |= (values[torch.float32] > 0.5) != (x is y)
if changed:
    sys.exit("the behaviour has changed")
print("as described: all uint8 images are equal")
PYTHON
"$work/venv/bin/python" -W ignore "$work/similarity.py"
