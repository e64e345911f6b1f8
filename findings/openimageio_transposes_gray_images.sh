#!/usr/bin/env bash
# OpenImageIO writes a square gray image transposed if the NumPy array has two dimensions: the first row 0, 1, 2, 3 becomes the first column.
#
# Expected: the image, as for the same array with the shape (4, 4, 1) or (16,), or an error. Seen with OpenImageIO 3.2.2.0 and NumPy 2.4.6 on Linux:
# ImageOutput.write_image, write_scanlines and ImageBuf.set_pixels return True and take the stride of the rows for that of the pixels.
# ImageBuf(array) of the same array is right. A confidence map, a depth map or a mask is flipped along its diagonal, which is hard to see in
# a square crop. If the image is not square, pixels are taken from other places of the memory. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 openimageio==3.2.2.0
cd "$work"
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import OpenImageIO as oiio

print(f"OpenImageIO {importlib.metadata.version('openimageio')}, NumPy {np.__version__}")


def read(name):
    file = oiio.ImageInput.open(name)
    pixels = file.read_image(oiio.UINT8)
    file.close()
    return pixels.squeeze().tolist()


def write(pixels, method):
    file = oiio.ImageOutput.create("image.tif")
    file.open("image.tif", oiio.ImageSpec(4, 4, 1, "uint8"))
    done = file.write_image(pixels) if method == "write_image" else file.write_scanlines(0, 4, 0, pixels)
    file.close()
    return done, read("image.tif")


def set_pixels(pixels):
    buffer = oiio.ImageBuf(oiio.ImageSpec(4, 4, 1, "uint8"))
    done = buffer.set_pixels(oiio.ROI(0, 4, 0, 4, 0, 1, 0, 1), pixels)
    return done, buffer.get_pixels(oiio.UINT8).squeeze().tolist()


def buffer_of(pixels):
    done = oiio.ImageBuf(pixels).write("image.tif")
    return done, read("image.tif")


gray = np.arange(16, dtype=np.uint8).reshape(4, 4)
functions = {
    "write_image": lambda pixels: write(pixels, "write_image"),
    "write_scanlines": lambda pixels: write(pixels, "write_scanlines"),
    "set_pixels": set_pixels,
    "ImageBuf": buffer_of,
}
changed = False
for name, function in functions.items():
    flat, deep = function(gray), function(gray[..., None].copy())
    print(f"{name}: shape (4, 4) {flat[1][0]}, shape (4, 4, 1) {deep[1][0]}")
    expected = gray if name == "ImageBuf" else gray.T
    changed |= flat != (True, expected.tolist()) or deep != (True, gray.tolist())
line = write(gray.ravel(), "write_image")
print(f"write_image: shape (16,) {line[1][0]}")
changed |= line != (True, gray.tolist())
if changed:
    sys.exit("the behaviour has changed")
print("as described: an array of two dimensions is transposed")
PYTHON
