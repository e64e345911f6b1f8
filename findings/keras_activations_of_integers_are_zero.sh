#!/usr/bin/env bash
# With NumPy as its backend, Keras's gelu of the integer 3 is 0, the sigmoid of 200 is 0, and the variance of 200 and 100 is -22460.
#
# Expected: the values of the functions, or an error; the backends JAX and TensorFlow have one or the other for each of these functions. Seen with
# keras 3.15.1, scipy 1.17.1, jax 0.10.2 and NumPy 2.4.6 on a CPU: the NumPy backend converts its constants to the type of the input, and
# negates and squares uint8 numbers, which wraps around. The factor 0.5 of gelu and the slope of leaky_relu become 0, the scale of selu becomes
# 1, and hard_sigmoid(3) is 0.5. The sigmoid and silu of uint8 numbers are 0, and a variance is negative. relu, elu and softplus are right.
# Images and quantized tensors are integers: a reference that is computed with NumPy is wrong for them, without an error.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2
cat > "$work/activations.py" <<'PYTHON'
import sys

import numpy as np
from keras import ops

signed, unsigned = np.array([3, -2], np.int32), np.array([200, 100], np.uint8)
# The function, its argument, and the results with NumPy and with JAX; None is an error.
rows = {
    "gelu of int32 3, -2": (ops.gelu, signed, [0, 0], [2.996, -0.045]),
    "selu of int32 3, -2": (ops.selu, signed, [3, -0.865], [3.152, -1.52]),
    "leaky_relu of int32 3, -2": (ops.leaky_relu, signed, [3, 0], [3, -0.4]),
    "hard_sigmoid of int32 3, -2": (ops.hard_sigmoid, signed, [0.5, 0], [1, 0.167]),
    "sigmoid of uint8 200, 100": (ops.sigmoid, unsigned, [0, 0], None),
    "silu of uint8 200, 100": (ops.silu, unsigned, [0, 0], None),
    "variance of uint8 200, 100": (lambda x: ops.moments(x, axes=[0])[1], unsigned, [-22460], [2500]),
    "elu of int32 3, -2": (ops.elu, signed, [3, -0.865], [3, -0.865]),
}
place = ["numpy", "jax"].index(sys.argv[1])
changed = False
for name, (function, x, *expected) in rows.items():
    try:
        result = np.asarray(function(x)).ravel()
        print(f"{sys.argv[1]}, {name}: {result.astype(np.float64).round(3).tolist()} ({result.dtype})")
    except TypeError as error:
        result = None
        print(f"{sys.argv[1]}, {name}: {type(error).__name__}")
    same = result is None if expected[place] is None else result is not None and np.allclose(result, expected[place], atol=1e-3)
    changed |= not same
sys.exit("changed" if changed else 0)
PYTHON
for backend in numpy jax; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/activations.py" "$backend"
done
echo "as described: gelu(3) is 0, and a variance is negative"
