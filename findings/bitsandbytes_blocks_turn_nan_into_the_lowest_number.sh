#!/usr/bin/env bash
# quantize_blockwise of bitsandbytes turns NaN into the lowest number of the block, and one infinity makes all numbers infinite.
#
# Expected: NaN in the element or in the whole block, as quantize_4bit of the same package has it. Seen with bitsandbytes 0.50.2 and torch 2.13.0
# on a CPU: the 8-bit code has no NaN, so NaN gets the lowest code, and the scale of the block ignores it. In a block of numbers between -2 and
# 1, NaN returns as -1.986, which looks like a number of the block. A block with one infinity returns as 64 infinities. A 4-bit block with NaN
# is NaN. A search for NaN in the restored numbers finds nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 packaging
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps bitsandbytes==0.50.2
cat > "$work/blocks.py" <<'PYTHON'
import sys

import torch
from bitsandbytes import functional


def eight(block):
    return functional.dequantize_blockwise(*functional.quantize_blockwise(block, blocksize=64))


def four(block):
    return functional.dequantize_4bit(*functional.quantize_4bit(block, quant_type="nf4", blocksize=64)).flatten()


plain = torch.linspace(-2, 1, 64)
with_nan, with_infinity = plain.clone(), plain.clone()
with_nan[5], with_infinity[5] = torch.nan, torch.inf
results = {name: (eight(block), four(block)) for name, block in (("plain", plain), ("NaN", with_nan), ("infinity", with_infinity))}
for name, (bits8, bits4) in results.items():
    print(f"{name}: 8 bits {bits8[4:7].tolist()}, NaN {bits8.isnan().sum()}, infinities {bits8.isinf().sum()};", end=" ")
    print(f"4 bits {bits4[4:7].tolist()}, NaN {bits4.isnan().sum()}")
bits8, bits4 = results["NaN"]
same = bits8.isfinite().all() and abs(bits8[5] + 1.986) < 0.01 and bits4.isnan().all()
same &= (bits8[6:] - plain[6:]).abs().max() < 0.05 and (results["plain"][0] - plain).abs().max() < 0.05
same &= results["infinity"][0].isinf().all()
if not same:
    sys.exit("the behaviour has changed")
print("as described: NaN is the lowest number")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/blocks.py"
