#!/usr/bin/env bash
# Model Optimizer rounds 3.5 to 3 in MXFP4 and to 4 in NVFP4, although both have the same elements, and 0 becomes -0 in MXFP4.
#
# Expected: one rounding of ties for the type E2M1, to even as in the OCP specification and ml_dtypes: 0.75, 1.25, 1.75, 2.5, 3.5
# and 5 become 1, 1, 2, 2, 4 and 4; and 0 for 0. Seen with nvidia-modelopt 0.47.0, torch 2.14.1, ml_dtypes 0.6.0 and NumPy 2.4.6 (CPU, x86-64
# Linux) on 2026-11-30, for MXFP4QTensor and NVFP4QTensor: in MXFP4 all ties go towards zero, 0.75 to 0.5 and 1.75 to 1.5. Both have the
# scale 1 here, so that no other rounding happens. The numbers next to the ties agree. The sign bit of MXFP4 is set for 0 and for -0. Weights that were
# rounded to bfloat16 before have many ties, which lose magnitude in one of the formats. The packages that "import modelopt.torch" needs
# besides its requirements are huggingface_hub and requests.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 ml_dtypes==0.6.0 torch==2.14.1 nvidia-modelopt==0.47.0 huggingface_hub==2.4.0 requests==2.34.2
"$work/venv/bin/python" -W ignore - 2>"$work/log" <<'PYTHON' || { tail -n 5 "$work/log"; exit 1; }
import importlib.metadata
import sys

import ml_dtypes
import numpy as np
import torch
from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("nvidia-modelopt", "torch", "ml_dtypes", "numpy")))
ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
numbers = [*ties, *(-tie for tie in ties), 0.0, 6.0, 0.76, 1.26, 1.74, 3.49, 3.51, 4.9]
numbers += [6.0] * (32 - len(numbers))
block = torch.tensor([numbers])
codes, scale = MXFP4QTensor.quantize(block, 32)
mxfp4 = codes.dequantize(dtype=torch.float32, scale=scale, block_sizes={-1: 32})[0].numpy()
codes, scales, second = NVFP4QTensor.quantize(block, 16)
nvfp4 = codes.dequantize(dtype=torch.float32, scale=scales, double_scale=second, block_sizes={-1: 16})[0].numpy()
even = np.array(numbers, np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
for number, one, other, expected in list(zip(numbers, mxfp4, nvfp4, even))[:22]:
    print(f"{number:g}: MXFP4 {one:g}, NVFP4 {other:g}, ml_dtypes {expected:g}")
down = np.array([0, 0.5, 1, 1.5, 2, 3, 4])
expected = np.concatenate([down, -down, even[14:]])
same = float(scale[0]) == 127 and np.array_equal(mxfp4, expected) and np.signbit(mxfp4[14])
same &= np.allclose(nvfp4, even, rtol=1e-6) and not np.signbit(nvfp4[14])
if not same:
    sys.exit("the behaviour has changed")
print("as described: ties go towards zero in MXFP4 and to even in NVFP4")
PYTHON
