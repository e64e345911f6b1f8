#!/usr/bin/env bash
# ScaleIntensityRange of MONAI turns the darkest bytes of an image white: with the range 50 to 200, the byte 25 becomes 1.0 instead of 0.0.
#
# Expected: 0.0 for each pixel below a_min with clip=True, as MONAI computes for the same pixels in int16 or float32, because the output
# is float32 by default. Seen with monai 1.6.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the transform subtracts
# a_min from the bytes before it converts them, so 25 - 50 wraps around to 231. The type of the Python number decides: a_min=50.0 gives
# 0.0. A negative a_min is affected too: with the range -100 to 200, the byte 225 becomes 0.23 instead of 1.0. No warning is given. A
# network that is trained on such images sees the background as the brightest structure.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 monai==1.6.1
cat > "$work/scale.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from monai.transforms import ScaleIntensityRange

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "numpy")))
pixels = np.array([[0, 25, 50, 125, 200, 225]])
changed = False
for a_min in (50, 50.0, -100, -100.0):
    scaled = np.clip((pixels - a_min) / (200 - a_min), 0, 1)[0]
    for dtype in (np.uint8, np.int16, np.float32):
        result = np.asarray(ScaleIntensityRange(a_min, 200, 0, 1, clip=True)(pixels.astype(dtype)))[0]
        print(f"a_min {a_min!r}, {np.dtype(dtype)}: {result.round(2).tolist()}")
        expected = scaled
        if dtype is np.uint8 and isinstance(a_min, int):
            wrapped = (pixels - a_min) % 256
            expected = np.clip(wrapped / (200 - a_min), 0, 1)[0]
        changed |= result.dtype != np.float32 or not np.allclose(result, expected, atol=1e-6)
        if a_min == 50 and isinstance(a_min, int):
            changed |= result[:2].tolist() != ([1, 1] if dtype is np.uint8 else [0, 0])
if changed:
    sys.exit("the behaviour has changed")
print("as described: bytes below an integer a_min become white")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/scale.py"
