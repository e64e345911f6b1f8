#!/usr/bin/env bash
# OpenEXR writes the red channel image[..., 0] of an interleaved image with green and blue numbers in it: 0, 3, 6, 9 is read as 0, 1, 2, 3.
#
# Expected: the numbers of the array, or an error, as for arrays of the other byte order. Seen with OpenEXR 3.5.3 and NumPy 2.4.6 on Linux: File
# keeps the array as it is, and write takes its first number and the ones behind it in memory, whatever the strides are. A channel of an
# image, a transposed image and each second column are written so; a copy of them is written right. A tensor (channels, height, width)
# that is permuted to an image becomes noise. The file has the right size and type, and no warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 openexr==3.5.3
cd "$work"
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import OpenEXR

print(f"OpenEXR {importlib.metadata.version('openexr')}, NumPy {np.__version__}")
header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}


def read_again(channels):
    OpenEXR.File(dict(header), dict(channels)).write("image.exr")
    read = {name: channel.pixels for name, channel in OpenEXR.File("image.exr").channels().items()}
    # Three channels of these names are returned as one array.
    return {name: read["RGB"][..., index] for index, name in enumerate("RGB")} if "RGB" in read else read


image = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
tensor = np.ascontiguousarray(image.transpose(2, 0, 1))
changed = False
for name, views in {
    "three channels": {"R": image[..., 0], "G": image[..., 1], "B": image[..., 2]},
    "a transposed image": {"Y": image[..., 0].copy().T},
    "each second column": {"Y": image[..., 0].copy()[:, ::2]},
}.items():
    seen = read_again(views)
    copies = read_again({channel: view.copy() for channel, view in views.items()})
    for channel, view in views.items():
        print(f"{name}, {channel}: {view.tolist()} is read as {seen[channel].tolist()}")
        start = (view.__array_interface__["data"][0] - view.base.__array_interface__["data"][0]) // 4
        behind = view.base.ravel()[start : start + view.size].reshape(view.shape)
        changed |= not np.array_equal(seen[channel], behind) or np.array_equal(seen[channel], view)
        changed |= not np.array_equal(copies[channel], view)
for name, view in (("contiguous", image), ("permuted tensor", tensor.transpose(1, 2, 0))):
    seen = read_again({"RGB": view})
    print(f"RGB, {name}: the first pixel {view[0, 0].tolist()} is read as {[float(seen[channel][0, 0]) for channel in 'RGB']}")
    right = all(np.array_equal(seen[channel], view[..., index]) for index, channel in enumerate("RGB"))
    changed |= right != (name == "contiguous")
try:
    read_again({"Y": image[..., 0].astype(">f4")})
except ValueError as error:
    print(f"other byte order: ValueError: {error}")
else:
    changed = True
if changed:
    sys.exit("the behaviour has changed")
print("as described: numbers are taken from the memory behind the first one")
PYTHON
