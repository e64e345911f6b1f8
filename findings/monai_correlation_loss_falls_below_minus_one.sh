#!/usr/bin/env bash
# The local correlation loss of MONAI, with values from -1 to 0, is below -1000000 for float32 images with an offset of 1000 or 2000.
#
# Expected: -1 for an image and itself, and -0.42 for an image and its mirror image, as the loss returns for the same numbers in float64.
# Seen with monai 1.6.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: LocalNormalizedCrossCorrelationLoss subtracts the
# square of a sum from the sum of squares, and replaces variances that are not positive by 1e-5. At an offset of 2000, the loss of an
# image and itself is -5000000512, and at an offset of 1000, the loss of its mirror image is -781256128. An offset of 300 changes the
# latter by 3%. No warning is given. A registration of such images minimises rounding errors.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 monai==1.6.1
cat > "$work/correlation.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import torch
from monai.losses import LocalNormalizedCrossCorrelationLoss

torch.set_num_threads(1)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "numpy")))
loss = LocalNormalizedCrossCorrelationLoss(spatial_dims=2, kernel_size=3)
image = torch.from_numpy((np.arange(256) * 37 % 64 / 64).astype(np.float32)).reshape(1, 1, 16, 16)
least = 0.0
changed = False
for offset in (0, 300, 1000, 2000):
    x = image + offset
    exact = torch.equal(x.double() - offset, image.double())
    results = [float(loss(x, x)), float(loss(x, x.flip(-1)))]
    double = [float(loss(x.double(), x.double())), float(loss(x.double(), x.double().flip(-1)))]
    print(f"offset {offset}: itself {results[0]}, mirrored {results[1]}; in float64 {double[0]:.4f} and {double[1]:.4f}")
    least = min(least, *results)
    changed |= not exact or abs(double[0] + 1) > 1e-3 or not -1 <= double[1] <= 0
    changed |= offset == 0 and not np.allclose(results, double, atol=1e-3)
if changed or least > -1e6:
    sys.exit("the behaviour has changed")
print("as described: an offset gives losses far below -1")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/correlation.py"
