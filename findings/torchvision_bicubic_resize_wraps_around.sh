#!/usr/bin/env bash
# torchvision's bicubic resize of 16-bit images writes 64001 next to black and 1534 next to white: overshoot wraps around.
#
# Expected: 0 and 65535, as uint8 images are clipped to 0 and 255. Seen with torchvision 0.29.1 and torch 2.14.1 (CPU, x86-64 Linux) on 2026-11-29:
# int8 and int16 images have -32001 next to 32767. The image is resized in float32, and the overshoot of the cubic kernel is clipped for uint8
# only. Bilinear results are right for all of these types. No warning is given. 16-bit photographs, X-ray images and microscope
# images have a line of black pixels along each bright edge.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchvision==0.29.1
cat > "$work/resize.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchvision", "torch")))


def edge(dtype):
    """Return an image with a black half and a white half."""
    largest = torch.iinfo(dtype).max
    return torch.tensor([0, 0, 0, 0] + [largest] * 4).to(dtype).expand(1, 8, 8).clone()


def enlarged(image, mode):
    """Return the middle of a row of the image at twice the width."""
    return functional.resize(image, [8, 16], interpolation=mode)[0, 0, 4:12].tolist()


bicubic = {
    torch.uint8: [0, 0, 0, 52, 203, 255, 255, 255],
    torch.uint16: [0, 64001, 60929, 13311, 52223, 4606, 1534, 65535],
    torch.int8: [0, -3, -9, 26, 101, -120, -126, 127],
    torch.int16: [0, -768, -2304, 6656, 26111, -30465, -32001, 32767],
}
changed = False
for dtype, expected in bicubic.items():
    largest = torch.iinfo(dtype).max
    seen = enlarged(edge(dtype), InterpolationMode.BICUBIC)
    linear = enlarged(edge(dtype), InterpolationMode.BILINEAR)
    print(f"{dtype}: bicubic {seen}, bilinear {linear}")
    changed |= any(abs(x - y) > 2 for x, y in zip(seen, expected))
    changed |= linear != sorted(linear) or linear[-1] != largest
if changed:
    sys.exit("the behaviour has changed")
print("as described: overshoot wraps around")
PYTHON
"$work/venv/bin/python" -W ignore "$work/resize.py"
