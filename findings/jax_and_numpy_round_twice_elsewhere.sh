#!/usr/bin/env bash
# JAX rounds float64 once to eight-bit floats and twice to bfloat16; NumPy with ml_dtypes rounds twice to both, and once to float16 only.
#
# Expected: the nearest number of the type in each case, or the same detour over float32 in each case. Seen with jax 0.10.2, ml_dtypes 0.6.0 and
# NumPy 2.4.6 on a CPU: 1.0625 + 2**-30 is nearest to 1.125 in float8_e4m3fn; JAX returns 1.125 and NumPy 1. 464 + 2**-30 is NaN
# in JAX and 448 in NumPy. 1 + 2**-8 + 2**-40 becomes 1 in bfloat16 for both, although 1.0078125 is nearest. So the two libraries
# disagree about the same conversion of the same type, ml_dtypes' float8_e4m3fn.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np

nan = float("nan")
rows = (
    (ml_dtypes.float8_e4m3fn, 1.0625 + 2**-30, 1.125, 1.0, 1.125),
    (ml_dtypes.float8_e4m3fn, 464 + 2**-30, nan, 448.0, nan),
    (ml_dtypes.float8_e5m2, 1.125 + 2**-30, 1.25, 1.0, 1.25),
    (ml_dtypes.bfloat16, 1 + 2**-8 + 2**-40, 1.0, 1.0, 1.0078125),
    (np.float16, 1 + 2**-11 + 2**-30, None, 1 + 2**-10, 1 + 2**-10),
)
changed = False
for dtype, value, in_jax, in_numpy, nearest in rows:
    array = np.array([value])
    seen = float(jnp.asarray(array).astype(dtype)[0]), float(array.astype(dtype)[0])
    print(f"{value!r} in {np.dtype(dtype).name}: JAX {seen[0]!r}, NumPy {seen[1]!r}, nearest {nearest!r}")
    changed |= str(seen[1]) != str(in_numpy) or (in_jax is not None and str(seen[0]) != str(in_jax))
if changed:
    sys.exit("the behaviour has changed")
print("as described: JAX and NumPy disagree in float8")
PYTHON
