#!/usr/bin/env bash
# The type "fp4" of bitsandbytes is not the 4-bit float of other libraries: it has 1/32 in place of 1/2.
#
# Expected: "fp4" has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6 up to a scale, as the OCP type E2M1, which is float4_e2m1fn in ml_dtypes. Seen
# with bitsandbytes 0.50.2, torch 2.13.0 and ml_dtypes 0.6.0 on a CPU: of the eight numbers, seven return unchanged from
# quantize_4bit and dequantize_4bit, and 0.5 returns as 0.03125. The smallest magnitude is 1/192 of the largest one in a block, not 1/12. 0.3 and
# 0.5 go to 1/32 and 0.6 goes to 1, so 0.5 loses 94 percent of itself. float4_e2m1fn keeps all eight.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 ml_dtypes==0.6.0 packaging
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps bitsandbytes==0.50.2
cat > "$work/fp4.py" <<'PYTHON'
import sys

import ml_dtypes
import numpy as np
import torch
from bitsandbytes import functional

magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
block = torch.tensor(magnitudes + [-number for number in magnitudes], dtype=torch.float32).repeat(4)
seen = functional.dequantize_4bit(*functional.quantize_4bit(block, quant_type="fp4", blocksize=64)).flatten()[:16].tolist()
other = block[:16].numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32).tolist()
print("numbers:      ", block[:16].tolist())
print("float4_e2m1fn:", other)
print("bitsandbytes: ", seen)
nearest = torch.tensor([0.3, 0.4, 0.5, 0.6, 0.7, 1, 1.2, 6] * 8)
near = functional.dequantize_4bit(*functional.quantize_4bit(nearest, quant_type="fp4", blocksize=64)).flatten()[:8].tolist()
print("bitsandbytes: ", nearest[:8].tolist(), "->", near)
expected = [0.03125 if number == 0.5 else number for number in magnitudes]
if other != block[:16].tolist() or seen != expected + [-number for number in expected] or near[2] != 0.03125:
    sys.exit("the behaviour has changed")
print("as described: 0.5 is 0.03125")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/fp4.py"
