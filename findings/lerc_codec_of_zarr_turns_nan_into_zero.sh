#!/usr/bin/env bash
# A zarr array with the LERC codec of imagecodecs returns 0 for NaN, in lossless mode, although the encoded data say which elements are NaN.
#
# Expected: NaN, as with the other lossless codecs of the package, because the format has a mask of valid elements. Seen with imagecodecs
# 2026.3.6, zarr 3.1.6, numcodecs 0.16.6 and NumPy 2.4.6 on a CPU: the encoder marks NaN in the mask, and the decoder drops the mask unless it is
# called with masks=True, which the codec class does not do. Infinity and -0.0 survive. A chunk of NaN becomes a chunk of zeros. The codecs Zfp,
# Jpegxl and Zstd return NaN for the same array. Missing pixels of a scan, for which NaN stands, become black pixels that count in each mean.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 zarr==3.1.6 numcodecs==0.16.6 imagecodecs==2026.3.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import imagecodecs
import numpy as np
import zarr
from imagecodecs import numcodecs

numcodecs.register_codecs(verbose=False)
nan, inf = float("nan"), float("inf")
x = np.array([[1, nan, inf, -0.0], [nan, nan, nan, nan]], np.float32)


def stored(codec):
    array = zarr.create_array({}, shape=x.shape, chunks=(1, 4), dtype=x.dtype, zarr_format=2, compressors=codec, fill_value=7)
    array[:] = x
    return array[:].tolist()


seen = {}
for codec in (numcodecs.Lerc(), numcodecs.Zfp(), numcodecs.Jpegxl(lossless=True), numcodecs.Zstd()):
    seen[codec.codec_id] = stored(codec)
    print(f"{codec.codec_id}: {seen[codec.codec_id]}")
mask = imagecodecs.lerc_decode(imagecodecs.lerc_encode(x), masks=True)[1].astype(int).tolist()
print("mask in the encoded data:", mask)
lossy = seen.pop("imagecodecs_lerc")
changed = any(str(values) != str(x.tolist()) for values in seen.values())
changed |= str(lossy) != str([[1.0, 0.0, inf, -0.0], [0.0] * 4])
if changed or mask != [[1, 0, 1, 1], [0, 0, 0, 0]]:
    sys.exit("the behaviour has changed")
print("as described: NaN becomes 0")
PYTHON
