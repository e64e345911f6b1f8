#!/usr/bin/env bash
# In JAX and MLX, a query that may see no key gets the mean of all masked values, or NaN; the kind of the mask decides.
#
# Expected: zeros, as in PyTorch, or NaN, for a mask of booleans as for the same mask in zeros and -inf. Seen with jax 0.10.2, mlx 0.32.4 and
# NumPy 2.4.6 on a CPU: a row of False returns the mean of the values that it hides, and a row of -inf returns NaN. With a causal mask, four
# queries and two keys, MLX aligns the last query with the last key, and its first two queries, which may see nothing, get both
# values; JAX aligns the first query with the first key. Padding can leak into an output without a NaN that would show it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 mlx==0.32.4 mlx-cpu==0.32.4
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
nan = np.nan
attend_jax, attend_mlx = jax.nn.dot_product_attention, mx.fast.scaled_dot_product_attention


def in_jax(queries, values, **mask):
    q, k = jnp.zeros((1, queries, 1, 8)), jnp.zeros((1, len(values), 1, 8))
    v = jnp.broadcast_to(jnp.array(values)[None, :, None, None], k.shape)
    return attend_jax(q, k, v, **mask)[0, :, 0, 0].tolist()


def in_mlx(queries, values, mask):
    q, k = mx.zeros((1, 1, queries, 8)), mx.zeros((1, 1, len(values), 8))
    v = mx.broadcast_to(mx.array(values)[None, None, :, None], k.shape)
    return attend_mlx(q, k, v, scale=1.0, mask=mask)[0, 0, :, 0].tolist()


seen = np.array([[False, False, False, False], [True, True, False, False]])
bias = np.where(seen, 0, -np.inf).astype(np.float32)
values = [1.0, 3.0, 50.0, 70.0]
results = {
    "JAX, booleans": (in_jax(2, values, mask=jnp.asarray(seen)[None, None]), [31.0, 2.0]),
    "JAX, -inf": (in_jax(2, values, bias=jnp.asarray(bias)[None, None]), [nan, 2.0]),
    "MLX, booleans": (in_mlx(2, values, mx.array(seen)), [31.0, 2.0]),
    "MLX, -inf": (in_mlx(2, values, mx.array(bias)), [nan, 2.0]),
    "JAX, causal, 4 queries, values 1 and 3": (in_jax(4, values[:2], is_causal=True), [1.0, 2.0, 2.0, 2.0]),
    "MLX, causal, 4 queries, values 1 and 3": (in_mlx(4, values[:2], "causal"), [2.0, 2.0, 1.0, 2.0]),
}
for name, (result, _) in results.items():
    print(f"{name}: {result}")
if any(not np.allclose(result, expected, equal_nan=True) for result, expected in results.values()):
    sys.exit("the behaviour has changed")
print("as described: a query without keys gets the mean of the masked values")
PYTHON
