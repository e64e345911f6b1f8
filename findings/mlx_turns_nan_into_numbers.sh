#!/usr/bin/env bash
# MLX's conversions to eight and four bits turn NaN into a number, and the numbers of the same block into other numbers.
#
# Expected: to_fp8 returns the NaN of float8_e4m3fn, 0x7f, which from_fp8 reads as NaN; a quantized block with a NaN becomes NaN, or keeps its
# numbers. Seen with mlx 0.32.4 and NumPy 2.4.6 on a CPU (x86-64 Linux): to_fp8 returns 448 for NaN and for infinity. A NaN in a block of ones
# makes the whole block 896 in mode mxfp8, 0 in mxfp4 and nvfp4, and 1 in affine. In nvfp4, 1e10 saturates to 2688, and 1e12 becomes 0 with
# its block. An overflow or a NaN before the quantization cannot be seen after it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" numpy==2.4.6 mlx==0.32.4 mlx-cpu==0.32.4
"$work/venv/bin/python" - <<'PYTHON'
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
inf, nan = np.inf, np.nan
seen = {}


def note(name, array):
    seen[name] = np.array(array.astype(mx.float32)).ravel().tolist()
    print(f"{name}: {seen[name]}")


note("from_fp8 of 0x7e, 0x7f", mx.from_fp8(mx.array([0x7E, 0x7F], dtype=mx.uint8), dtype=mx.float32))
note("to_fp8 of nan, inf, -inf", mx.from_fp8(mx.to_fp8(mx.array([nan, inf, -inf])), dtype=mx.float32))
for mode in ("mxfp8", "mxfp4", "nvfp4", "affine"):
    for value in (1.0, nan) if mode != "nvfp4" else (1.0, nan, 1e10, 1e12):
        options = {"mode": mode, "group_size": 16 if mode == "nvfp4" else 32}
        quantized = mx.quantize(mx.array([[value] + [1.0] * 31]), **options)
        note(f"{value:g} and ones in {mode}", mx.dequantize(*quantized, **options)[:, :3])
expected = {
    "from_fp8 of 0x7e, 0x7f": [448.0, nan],
    "to_fp8 of nan, inf, -inf": [448.0, 448.0, -448.0],
    "1 and ones in mxfp8": [1.0] * 3,
    "nan and ones in mxfp8": [896.0] * 3,
    "1 and ones in mxfp4": [1.0] * 3,
    "nan and ones in mxfp4": [0.0] * 3,
    "nan and ones in nvfp4": [0.0] * 3,
    "1e+10 and ones in nvfp4": [2688.0, 0.0, 0.0],
    "1e+12 and ones in nvfp4": [0.0] * 3,
    "1 and ones in affine": [1.0] * 3,
    "nan and ones in affine": [1.0] * 3,
}
if any(str(seen[name]) != str(values) for name, values in expected.items()):
    sys.exit("the behaviour has changed")
print("as described: NaN becomes a number")
PYTHON
