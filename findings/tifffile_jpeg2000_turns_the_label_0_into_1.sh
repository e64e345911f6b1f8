#!/usr/bin/env bash
# tifffile writes a uint32 label image with lossless JPEG 2000 so that the background, 0, is read as 1, and so is the label 2**26.
#
# Expected: the same image, as with uint16 and int32, or an error. Seen with tifffile 2026.3.3, imagecodecs 2026.3.6 and NumPy 2.4.6 on Linux, with
# the default arguments of compression="jpeg2000" and with jpeg2k_encode(..., level=0, reversible=True). All other uint32 numbers below 2**26
# are kept, and larger ones become others or 1. With int32 the numbers below 2**25 are kept, and 2**25, 2**26 and 2**30 become -33554431, 0
# and 0. The docstring of jpeg2k_encode asks in a TODO whether numbers may have more than 26 bits, and nothing is checked: no
# error and no warning. Background and the first object of a segmentation become one object.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 tifffile==2026.3.3 imagecodecs==2026.3.6
"$work/venv/bin/python" -W error - <<'PYTHON'
import io
import sys

import imagecodecs
import numpy as np
import tifffile

print(f"tifffile {tifffile.__version__}, imagecodecs {imagecodecs.__version__}, {imagecodecs.jpeg2k_version()}")
small = [0, 1, 2, 250, 65535]
rows = {
    "uint16": (small, small),
    "int32": (small, small),
    "uint32": (small, [1, 1, 2, 250, 65535]),
    "uint32, large": ([2**25, 2**26, 2**27, 2**30], [2**25, 1, 1, 1]),
    "int32, large": ([2**25 - 1, 2**25, 2**26, 2**30], [2**25 - 1, 1 - 2**25, 0, 0]),
}
changed = False
for name, (labels, expected) in rows.items():
    image = np.array([labels] * 8, name.split(",")[0])
    file = io.BytesIO()
    tifffile.imwrite(file, image, compression="jpeg2000")
    file.seek(0)
    seen = tifffile.imread(file)
    again = imagecodecs.jpeg2k_decode(imagecodecs.jpeg2k_encode(image, level=0, reversible=True))
    print(f"{name}: {labels} is read as {seen[0].tolist()}")
    changed |= seen.dtype != image.dtype or seen.tolist() != [expected] * 8 or not np.array_equal(seen, again)
if changed:
    sys.exit("the behaviour has changed")
print("as described: 0 is read as 1, and numbers of 27 bits are lost")
PYTHON
