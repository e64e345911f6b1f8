#!/usr/bin/env bash
# jax.nn.softmax of the int8 logits -100, 100 and 0 gives the first class the probability 1; scipy.special.softmax returns NaN.
#
# Expected: 1 for the second class, as for the same logits in int32 or float32, or an error, as PyTorch raises for integers. Seen with jax
# 0.10.2, scipy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: both functions subtract the maximum in the type of the logits,
# which wraps around: -100 - 100 is 56 in int8. uint8 logits are affected in the same way, and log_softmax of both packages. The functions
# logsumexp of both packages are right. hard_tanh of JAX returns 255 for the byte 0, and log_sigmoid -56 for the byte 200 instead of 0. No
# warning is given. A quantized network returns int8 logits: its most probable class may be the one with the lowest logit.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 jax==0.10.2 jaxlib==0.10.2
cat > "$work/softmax.py" <<'PYTHON'
import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "scipy", "numpy")))
nan, inf = np.nan, np.inf
cases = [
    (np.int8, [-100, 100, 0], [1, 0, 0], [0, -56, -156], [nan, 0, 0]),
    (np.uint8, [3, 200, 0], [0.9526, 0, 0.0474], [-0.0486, -59.0486, -3.0486], [nan, 0, nan]),
    (np.int32, [-100, 100, 0], [0, 1, 0], [-200, 0, -100], [0, 1, 0]),
    (np.float32, [-100, 100, 0], [0, 1, 0], [-200, 0, -100], [0, 1, 0]),
]
changed = False
for dtype, numbers, softmax, log_softmax, scipy_softmax in cases:
    logits = np.array(numbers, dtype)
    with np.errstate(all="ignore"):
        results = [
            jax.nn.softmax(jnp.asarray(logits)),
            jax.nn.log_softmax(jnp.asarray(logits)),
            scipy.special.softmax(logits),
            scipy.special.log_softmax(logits),
        ]
        sums = [float(jax.nn.logsumexp(jnp.asarray(logits))), float(scipy.special.logsumexp(logits))]
    results = [np.asarray(result, np.float64) for result in results]
    names = ("JAX softmax", "log_softmax", "SciPy softmax", "log_softmax")
    print(f"{logits.dtype} {numbers}: " + ", ".join(f"{name} {result.round(4).tolist()}" for name, result in zip(names, results)))
    narrow = logits.dtype.itemsize == 1
    expected = [softmax, log_softmax, scipy_softmax, [-inf] * 3 if narrow else log_softmax]
    changed |= any(not np.allclose(a, b, atol=1e-2, equal_nan=True) for a, b in zip(results, expected))
    changed |= not np.allclose(sums, max(numbers), atol=0.1)
pixels = jnp.array([0, 200], jnp.uint8)
tanh, sigmoid = jax.nn.hard_tanh(pixels).tolist(), jax.nn.log_sigmoid(pixels).tolist()
print(f"bytes {pixels.tolist()}: JAX hard_tanh {tanh}, log_sigmoid {sigmoid}")
changed |= tanh != [255, 1] or not np.allclose(sigmoid, [-np.log(2), -56], atol=1e-2)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the softmax of bytes prefers a small logit")
PYTHON
HOME="$work" JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/softmax.py"
