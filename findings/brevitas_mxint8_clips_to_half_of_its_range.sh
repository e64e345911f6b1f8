#!/usr/bin/env bash
# Brevitas clips MXINT8 blocks to half of their range: a block with 6 and 3 returns 3.97 and 3, and 1.99 becomes 0.992.
#
# Expected: 6 and 3, which MXINT8 has exactly: the OCP specification divides the block by the power of two below its largest number, here 4, and its
# elements reach to 127/64, so that 6 is 1.5. Seen with brevitas 0.13.4, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30, for MXInt8Weight,
# MXInt8WeightMSE and MXInt8Act: the power of two is the same, and the elements are multiples of 1/128, which reach to 127/128, so that all
# numbers above the power of two are clipped to it. Numbers of a fraction of it keep one more bit. MXFloat8e4m3Weight rounds as specified. A uniformly distributed
# largest number is cut by 31 percent on average, and a network loses its largest weights with a format that is meant to keep them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 brevitas==0.13.4
"$work/venv/bin/python" -W ignore - 2>"$work/log" <<'PYTHON' || { tail -n 5 "$work/log"; exit 1; }
import importlib.metadata
import sys

import brevitas.nn
import numpy as np
import torch
from brevitas.quant.experimental import mx_quant_ocp

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("brevitas", "torch", "numpy")))


def block(numbers):
    """Return a block of 32 numbers that begins with the given ones."""
    return torch.tensor([[*numbers, *[0.0] * (32 - len(numbers))]])


def weights(kind, numbers):
    """Return the first numbers of a quantized block of weights."""
    layer = brevitas.nn.QuantLinear(32, 1, bias=False, weight_quant=getattr(mx_quant_ocp, kind))
    layer.weight.data = block(numbers)
    result = layer.quant_weight()
    return getattr(result, "value", result).detach().reshape(-1)[: len(numbers)].numpy()


def specified(numbers):
    """Return the numbers that the OCP specification of MXINT8 gives."""
    scale = 2.0 ** np.floor(np.log2(np.abs(numbers).max()))
    return np.clip(np.round(np.array(numbers) / scale * 64), -127, 127) / 64 * scale


same = True
for numbers in ([6.0, 3.0], [-6.0, 3.0], [1.984375, 1.0], [1.5, 0.75], [100.0, 50.0], [4.0, 2.0]):
    seen, expected = {kind: weights(kind, numbers) for kind in ("MXInt8Weight", "MXInt8WeightMSE", "MXFloat8e4m3Weight")}, specified(numbers)
    scale = 2.0 ** np.floor(np.log2(np.abs(numbers).max()))
    clipped = np.clip(numbers, -scale, scale * 127 / 128)
    print(f"{numbers}: " + ", ".join(f"{kind} {values.tolist()}" for kind, values in seen.items()) + f", specified {expected.tolist()}")
    same &= np.array_equal(seen["MXInt8Weight"], clipped) and np.array_equal(seen["MXInt8WeightMSE"], clipped)
    same &= np.allclose(seen["MXFloat8e4m3Weight"], numbers, rtol=0.13) and np.array_equal(expected, numbers)
activation = brevitas.nn.QuantIdentity(act_quant=mx_quant_ocp.MXInt8Act, group_dim=-1).eval()(block([6.0, 4.0, -6.0]))
activation = getattr(activation, "value", activation).reshape(-1)[:3].tolist()
print(f"[6, 4, -6] as activations: {activation}")
if not same or activation != [3.96875, 3.96875, -4]:
    sys.exit("the behaviour has changed")
print("as described: numbers above the power of two are clipped to it")
PYTHON
