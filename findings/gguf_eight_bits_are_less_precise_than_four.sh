#!/usr/bin/env bash
# The package gguf quantizes small weights better with four bits than with eight: Q8_0 turns 3.5e-6 into 0, and 4e-6 into 7.6e-6.
#
# Expected: errors of Q8_0 that are about 16 times smaller than those of Q4_0, as they are for larger numbers. Seen with gguf 0.19.0 and NumPy
# 2.4.6: both types store the scale of a block in float16. The scale is the largest number divided by 127 for Q8_0 and by 8 for Q4_0, so that
# it is subnormal earlier, from 0.0078 on, and its smallest number is 6e-8. Blocks below 3.8e-6 become 0 in Q8_0; float16 itself keeps them. A
# tensor of small numbers, such as a factor of a low-rank adaptation, loses its contents in the type with more bits.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 gguf==0.19.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

# The largest number of a block, and which type is expected to have the smaller error.
rows = {0.1: "Q8_0", 1e-4: "Q8_0", 1e-5: "Q4_0", 4e-6: "Q4_0", 3.5e-6: "Q4_0", 1e-6: "Q4_0"}
pattern = np.linspace(-1, 1, 32, dtype=np.float32)
seen, largest = {}, {}
for size in rows:
    x = pattern * np.float32(size)
    errors = {}
    for name in ("Q8_0", "Q4_0", "F16"):
        kind = GGMLQuantizationType[name]
        y = dequantize(quantize(x, kind), kind)
        errors[name] = float(np.sqrt(np.mean((y - x) ** 2)) / size)
        largest[name, size] = float(y.max())
    seen[size] = min("Q8_0", "Q4_0", key=errors.get)
    numbers = ", ".join(f"{name} {largest[name, size]:.3g} (error {error:.1%})" for name, error in errors.items())
    print(f"a block up to {size:g}: {numbers}")
if seen != rows or largest["Q8_0", 3.5e-6] != 0 or not 7.5e-6 < largest["Q8_0", 4e-6] < 7.6e-6:
    sys.exit("the behaviour has changed")
print("as described: eight bits lose numbers that four bits keep")
PYTHON
