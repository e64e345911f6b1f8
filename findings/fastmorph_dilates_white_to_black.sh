#!/usr/bin/env bash
# fastmorph's grayscale dilation of a uint8 image returns 0 next to each pixel of 255; a white image becomes black.
#
# Expected: the maximum of the 3x3x3 neighbourhood, as the docstring of Mode.grey and scipy.ndimage.grey_dilation have it. Seen with fastmorph 1.10.0,
# SciPy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29: 254 is dilated correctly. The largest value of each integer type is affected, as
# 65535 for uint16, and an erosion returns 0 next to the lowest value of int8 and int16. A grayscale closing of a mask with 0 and 255 is empty.
# No error is raised. A mask of 0 and 1 does not show the difference, and a mask of 0 and 255 loses all of its foreground.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 fastmorph==1.10.0
cat > "$work/dilation.py" <<'PYTHON'
import importlib.metadata
import sys

import fastmorph
import numpy as np
from scipy import ndimage

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("fastmorph", "scipy", "numpy")))
changed = False


def compare(name, image, function, reference, expected):
    """Compare a function of fastmorph with SciPy, and the value at the centre with the expected one."""
    global changed
    seen = getattr(fastmorph, function)(image.copy(), mode=fastmorph.Mode.grey)
    correct = reference(image, size=(3, 3, 3))
    wrong = int((seen != correct).sum())
    centre = tuple(length // 2 for length in image.shape)
    print(f"{function} of {name}: {seen[centre]} at the centre, SciPy {correct[centre]}; {wrong} of {seen.size} voxels differ")
    changed |= seen[centre] != expected or (wrong > 0) != (expected != correct[centre])


def cube(dtype, value, background=0):
    image = np.full((9, 9, 9), background, dtype)
    image[3:6, 3:6, 3:6] = value
    return image


dilation, erosion, closing = ndimage.grey_dilation, ndimage.grey_erosion, ndimage.grey_closing
compare("a uint8 cube of 255", cube(np.uint8, 255), "dilate", dilation, 0)
compare("a uint8 cube of 255 in 100", cube(np.uint8, 255, 100), "dilate", dilation, 0)
compare("a uint8 cube of 254", cube(np.uint8, 254), "dilate", dilation, 254)
compare("a uint16 cube of 65535", cube(np.uint16, 65535), "dilate", dilation, 0)
compare("a uint16 cube of 65534", cube(np.uint16, 65534), "dilate", dilation, 65534)
compare("an int32 cube of 2147483647", cube(np.int32, 2**31 - 1), "dilate", dilation, 0)
compare("a uint8 cube of 255", cube(np.uint8, 255), "closing", closing, 0)
compare("a uint8 cube of 254", cube(np.uint8, 254), "closing", closing, 254)
compare("a uint8 cube of 255", cube(np.uint8, 255), "erode", erosion, 255)
compare("an int8 cube of -128", cube(np.int8, -128), "erode", erosion, 0)
compare("an int16 cube of -32768", cube(np.int16, -32768), "erode", erosion, 0)
compare("an int8 cube of -127", cube(np.int8, -127), "erode", erosion, -127)
white = np.full((9, 9, 9), 255, np.uint8)
seen = np.unique(fastmorph.dilate(white, mode=fastmorph.Mode.grey)).tolist()
print(f"values of a dilated white image: {seen}")
if changed or seen != [0]:
    sys.exit("the behaviour has changed")
print("as described: white becomes black")
PYTHON
"$work/venv/bin/python" "$work/dilation.py"
