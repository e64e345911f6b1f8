#!/usr/bin/env bash
# The 4-bit matrix product of AQT returns 6.97 for eight ones times eight ones, and int4 weights of Qwix turn 7 into 6.53 and -7 into -7.47.
#
# Expected: 8, and 7 and -7: the integers of int4 reach from -8 to 7, so that a scale that maps the largest number to 7 keeps all of these numbers.
# Seen with aqtp 0.9.0, qwix 0.1.8, jax 0.10.2 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: both packages divide by the largest number
# and multiply by 7.5. AQT clips the result to 7, which makes each operand 6.7 % smaller and their product 13 %; with three bits, it is 27 %, with
# eight 0.8 %. Qwix rounds -7.5 to -8, which is a number of int4, and clips 7.5 to 7. Float8 of Qwix keeps the numbers. No warning
# is given. The largest weight of each channel, which matters most, has the largest error, and its sign decides on the direction.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 flax==0.12.8 aqtp==0.9.0 qwix==0.1.8
cat > "$work/product.py" <<'PYTHON'
import importlib.metadata
import sys

import jax.numpy as jnp
import numpy as np
import qwix
from aqt.jax.v2 import config

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("aqtp", "qwix", "jax", "numpy")))
changed = False
signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], size=(4, 64)), jnp.float32)
contract = (((1,), (0,)), ((), ()))
for bits in (2, 3, 4, 8):
    product = config.config_v4(fwd_bits=bits, dlhs_bits=None, drhs_bits=None)
    seen = float(product(jnp.ones((1, 8)), jnp.ones((8, 1)), contract)[0, 0])
    expected = 8 * ((2 ** (bits - 1) - 1) / (2 ** (bits - 1) - 0.5)) ** 2
    ratio = np.asarray(product(signs, signs.T, contract)).diagonal() / 64
    print(f"AQT, {bits} bits: eight ones times eight ones {seen:.4f}, products of -1 and 1 times {ratio.min():.4f} to {ratio.max():.4f}")
    changed |= abs(seen - expected) > 1e-3 or not np.allclose(ratio, expected / 8, atol=1e-3)
numbers = jnp.array([[-7.0, -3, 0, 3, 7]])
described = {"int4": [-7.4667, -2.8, 0, 2.8, 6.5333], "int8": [-6.9725, -3.0196, 0, 3.0196, 6.9725], "float8_e4m3fn": [-7, -3, 0, 3, 7]}
for dtype, values in described.items():
    array = qwix.quantize(numbers, dtype, channelwise_axes=[0])
    result = np.asarray(qwix.dequantize(array), np.float32)[0]
    integers = np.asarray(array.qvalue).astype(np.float32)[0]
    print(f"Qwix, {dtype}: {numbers[0].tolist()} becomes {result.round(4).tolist()}, stored as {integers.tolist()}")
    changed |= not np.allclose(result, values, atol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the largest number of a channel is not kept")
PYTHON
JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/product.py"
