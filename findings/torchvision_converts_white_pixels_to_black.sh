#!/usr/bin/env bash
# torchvision's conversion of a float32 image to uint16 turns white, 1.0, into 0, and so does that of float16 and bfloat16 to uint8.
#
# Expected: 65535 and 255, as float64 to uint16 and float32 to uint8 return. Seen with torchvision 0.29.1 and torch 2.14.1 (CPU, x86-64 Linux)
# on 2026-11-29, for to_dtype and convert_image_dtype: the factor, 65536 less 0.001, is rounded to 65536 in the type of the image, and the
# product wraps around. In bfloat16, 0.999 becomes 0 too, and the round trip of a uint8 image changes 128 of 256 levels. To int8 and int16,
# white becomes the lowest number. equalize() converts to uint8 inside, and its white pixels are 0 for float16 images. float32 to int32
# raises an error for this reason. to_pil_image of the same float16 image has 255. White paper and overexposed pixels are black.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchvision==0.29.1
cat > "$work/white.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from torchvision.transforms import functional as first_functional
from torchvision.transforms.v2 import functional

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchvision", "torch")))
image = torch.tensor([0, 0.5, 0.9, 0.999, 1]).reshape(1, 1, 5)
cases = {
    (torch.float64, torch.uint16): [0, 32767, 58982, 65470, 65535],
    (torch.float32, torch.uint16): [0, 32768, 58982, 65470, 0],
    (torch.float32, torch.uint8): [0, 127, 230, 255, 255],
    (torch.float16, torch.uint8): [0, 128, 230, 255, 0],
    (torch.bfloat16, torch.uint8): [0, 128, 230, 0, 0],
    (torch.float32, torch.int16): [0, 16383, 29491, 32735, 32767],
    (torch.float16, torch.int16): [0, 16384, 29488, 32736, -32768],
    (torch.float16, torch.int8): [0, 64, 115, 127, -128],
}
changed = False
for (source, target), expected in cases.items():
    converted = functional.to_dtype(image.to(source), target, scale=True).flatten().tolist()
    first = first_functional.convert_image_dtype(image.to(source), target).flatten().tolist()
    print(f"{source} to {target}: {converted}")
    changed |= converted != expected or first != expected

levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
for dtype, expected in ((torch.float32, 0), (torch.float16, 16), (torch.bfloat16, 128)):
    again = functional.to_dtype(functional.to_dtype(levels, dtype, scale=True), torch.uint8, scale=True)
    equalized = float(functional.equalize(functional.to_dtype(levels, dtype, scale=True)).flatten()[-1])
    count = int((again != levels).sum())
    print(f"uint8 to {dtype} and back: {count} of 256 levels differ, white is {int(again.max()) if count == 0 else int(again.flatten()[-1])}")
    print(f"    equalize in {dtype}: white is {equalized}")
    changed |= count != expected or equalized != float(dtype is torch.float32)
white = functional.to_pil_image(torch.ones(1, 2, 2, dtype=torch.float16)).getpixel((0, 0))
print(f"to_pil_image of a white float16 image: {white}")
if changed or white != 255:
    sys.exit("the behaviour has changed")
print("as described: white pixels are black")
PYTHON
"$work/venv/bin/python" -W ignore "$work/white.py"
