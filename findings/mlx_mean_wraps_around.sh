#!/usr/bin/env bash
# MLX's mean, variance and norm of int32 arrays are computed in 32-bit integers, and are returned as floats.
#
# Expected: the result type, float32, is used for the sum, as in NumPy, JAX and PyTorch. Seen with mlx 0.32.4 on a CPU (x86-64 Linux): the
# mean of two numbers 2000000000 is negative, their standard deviation is 2147483648, and the norm of 65536 and 1 is 1. The median is right.
# Half precision is affected too: the mean of two float16 numbers 40000 is infinite, and three equal bfloat16 numbers have a standard
# deviation of 4. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps mlx==0.32.4 mlx-cpu==0.32.4
"$work/venv/bin/python" - <<'PYTHON'
import math
import sys

import mlx.core as mx

mx.set_default_device(mx.cpu)
equal = mx.array([2000000000, 2000000000])
results = {
    "median of int32": (mx.median(equal), 2e9),
    "mean of int32": (mx.mean(equal), -147483648),
    "standard deviation of int32": (mx.std(equal), 2.0**31),
    "norm of int32": (mx.linalg.norm(mx.array([65536, 1])), 1),
    "mean of float16": (mx.mean(mx.array([40000, 40000], dtype=mx.float16)), math.inf),
    "standard deviation of bfloat16": (mx.std(mx.array([1000, 1000, 1000], dtype=mx.bfloat16)), 4),
}
for name, (result, _) in results.items():
    print(f"{name}: {result.item():g} ({result.dtype})")
if any(result.item() != expected for result, expected in results.values()):
    sys.exit("the behaviour has changed")
print("as described: the mean of two equal numbers is negative")
PYTHON
