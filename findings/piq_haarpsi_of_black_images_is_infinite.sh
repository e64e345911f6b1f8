#!/usr/bin/env bash
# HaarPSI of PIQ is infinite for two black images, and its loss is minus infinity with NaN gradients; for two gray images it is 1.
#
# Expected: 1, the value for equal images, which PIQ returns for SSIM, VSI, FSIM, SR-SIM and DSS of the same images, and a loss of 0. Seen with piq 0.8.0,
# torch 2.14.1 and torchvision 0.29.1 (CPU, x86-64 Linux) on 2026-11-29: the similarities are averaged with the largest Haar coefficients
# of both images as weights, and the sum of the weights is 0 for black images; 1 is returned for white and gray ones, because the
# borders of zeros have coefficients. Black images with one brighter pixel of 0.001 have the value 1. One black pair makes the mean of a batch
# infinite. No warning is given. An optimizer that minimizes the loss sets all weights to NaN at the first dark pair.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchvision==0.29.1 piq==0.8.0
cat > "$work/similarity.py" <<'PYTHON'
import importlib.metadata
import math
import sys

import piq
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("piq", "torch", "torchvision")))
black = torch.zeros(1, 3, 64, 64)
pixel = black.clone()
pixel[..., 32, 32] = 1e-3
noise = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
images = {"black": black, "one pixel of 0.001": pixel, "gray": black + 0.5, "white": black + 1, "noise": noise, "noise and black": torch.cat([noise, black])}
changed = False
for name, image in images.items():
    inputs = image.clone().requires_grad_()
    value = float(piq.haarpsi(image, image))
    loss = piq.HaarPSILoss()(inputs, image)
    (gradient,) = torch.autograd.grad(loss, inputs)
    others = [float(function(image, image)) for function in (piq.ssim, piq.vsi, piq.fsim, piq.srsim, piq.dss)]
    finite = bool(gradient.isfinite().all())
    print(f"{name}: HaarPSI {value:.4f}, loss {float(loss):.4f}, finite gradient {finite}; others {[round(other, 4) for other in others]}")
    affected = "black" in name
    changed |= any(abs(other - 1) > 1e-3 for other in others)
    changed |= math.isinf(value) != affected or (not affected and abs(value - 1) > 1e-3) or finite == affected
if changed:
    sys.exit("the behaviour has changed")
print("as described: black images are infinitely similar")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/similarity.py"
