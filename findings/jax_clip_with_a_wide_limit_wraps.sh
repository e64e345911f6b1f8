#!/usr/bin/env bash
# JAX wraps Python integers to the type of the array, in comparisons and limits too, so clipping to a wider range changes numbers.
#
# Expected: a comparison with a number beyond the type has one result for all elements, as in NumPy, and clip keeps numbers within its limits, or an
# OverflowError is raised, as NumPy does for sums. Seen with jax 0.10.2, NumPy 2.4.6 and uint8 arrays: clip of 200 to 0 and 300 is 44,
# 100 < 300 is False, 0 == 256 and 255 == -1 are True, and maximum(7, -1) is 255. No warning is given. A label of -1 for
# "ignore" matches the class 255.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import jax.numpy as jnp
import numpy as np


def rows(module):
    def row(function, *values):
        try:
            return function(module.asarray(np.array(values, np.uint8))).tolist()
        except OverflowError:
            return "OverflowError"

    return {
        "clip(x, 0, 300) of 7, 200": row(lambda x: module.clip(x, 0, 300), 7, 200),
        "maximum(x, -1) of 7, 200": row(lambda x: module.maximum(x, -1), 7, 200),
        "x < 300 of 7, 100": row(lambda x: x < 300, 7, 100),
        "x == 256 of 0, 1": row(lambda x: x == 256, 0, 1),
        "x == -1 of 255, 1": row(lambda x: x == -1, 255, 1),
    }


seen, exact = rows(jnp), rows(np)
for name, result in seen.items():
    print(f"{name}: {result}; NumPy: {exact[name]}")
if list(seen.values()) != [[7, 44], [255, 255], [True, False], [True, False], [True, False]]:
    sys.exit("the behaviour has changed")
print("as described: 300 is taken as 44, and -1 as 255")
PYTHON
