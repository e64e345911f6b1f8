#!/usr/bin/env bash
# The MXFP4 quantization of the package gguf turns a block that has a NaN or an infinity into 32 zeros.
#
# Expected: NaN for the block, by the NaN of the scale type E8M0 that the OCP specification has for it, or the largest number for an infinity.
# Seen with gguf 0.19.0 and NumPy 2.4.6 (x86-64): all numbers of the block become 0. Q8_0 and Q4_0 keep a NaN for a block, and BF16 for the element.
# Numbers halfway between two numbers of the type go to the smaller one, 0.75 to 0.5 and 1.75 to 1.5; the nearest even is 1 and 2. A diverged
# or damaged weight disappears with its 31 neighbours, and a search for NaN in the quantized model does not find it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 gguf==0.19.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

inf, nan = np.inf, np.nan


def quantized(name, *values):
    """Return the numbers after a quantization; they are followed by ones to the end of a block of 32."""
    kind = GGMLQuantizationType[name]
    x = np.ones(32, np.float32)
    x[: len(values)] = values
    return dequantize(quantize(x, kind), kind)


changed = False
for name, values, expected in (
    ("MXFP4", (1, 2, nan, 4), [0, 0, 0, 0]),
    ("MXFP4", (1, 2, inf, 4), [0, 0, 0, 0]),
    ("MXFP4", (1, 2, 3, 4), [1, 2, 3, 4]),
    ("MXFP4", (0.75, 1.75, 2.5, 4), [0.5, 1.5, 2, 4]),
    ("Q8_0", (1, 2, nan, 4), [nan, nan, nan, nan]),
    ("Q4_0", (1, 2, nan, 4), [nan, nan, nan, nan]),
    ("BF16", (1, 2, nan, 4), [1, 2, nan, 4]),
):
    y = quantized(name, *values)
    print(f"{name} of {values} and 28 ones: {y[:4].tolist()}, and then {np.unique(y[4:]).tolist()}")
    changed |= not np.array_equal(y[:4], expected, equal_nan=True)
    changed |= name == "MXFP4" and not (y[4:] == (0 if not np.all(np.isfinite(values)) else 1)).all()
if changed:
    sys.exit("the behaviour has changed")
print("as described: one NaN makes 32 zeros")
PYTHON
