#!/usr/bin/env bash
# jnp.convolve of the int32 numbers 16777217 and 3 with 1 is 16777216.0 and 3.0: JAX convolves integers in float32 and returns floats.
#
# Expected: the integers 16777217 and 3, as np.convolve and the product of a matrix and a vector in JAX return. Seen with jax 0.10.2, NumPy
# 2.4.6 and SciPy 1.17.1 (CPU, x86-64 Linux) on 2026-11-29, for convolve, correlate and polymul of jax.numpy and convolve, correlate and
# convolve2d of jax.scipy.signal, with and without jit: the type of the result is float32, with boolean arrays too. With 64-bit types turned on, int64
# numbers are convolved in float64, and 2**53 + 1 loses its last bit. preferred_element_type=jnp.int32 gives integers and the exact result.
# Counts, checksums and fixed-point filters lose their last digits, and a result used as an index has to be converted. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 jax==0.10.2 jaxlib==0.10.2
cat >"$work/convolve.py" <<'PYTHON'
import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import jax.scipy.signal
import numpy as np
import scipy.signal

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "scipy")))
x, one = np.array([2**24 + 1, 3], np.int32), np.array([1], np.int32)


def convolve2d(library):
    return lambda a, b: library.convolve2d(a[None], b[None])[0]


# name, function of JAX, function of NumPy or SciPy
pairs = [
    ("convolve", jnp.convolve, np.convolve),
    ("convolve, jit", jax.jit(jnp.convolve), np.convolve),
    ("correlate", lambda a, b: jnp.correlate(a, b, "full"), lambda a, b: np.correlate(a, b, "full")),
    ("polymul", jnp.polymul, np.polymul),
    ("signal.convolve", jax.scipy.signal.convolve, scipy.signal.convolve),
    ("signal.correlate", jax.scipy.signal.correlate, scipy.signal.correlate),
    ("signal.convolve2d", convolve2d(jax.scipy.signal), convolve2d(scipy.signal)),
]
changed = False
for name, function, reference in pairs:
    seen, exact = np.asarray(function(x, one)), reference(x, one)
    print(f"{name}: JAX {seen.dtype} {seen.tolist()}, NumPy or SciPy {exact.dtype} {exact.tolist()}")
    changed |= (seen.dtype.name, seen.tolist()) != ("float32", [2**24, 3]) or (exact.dtype.name, exact.tolist()) != ("int32", [2**24 + 1, 3])
exact = jnp.convolve(x, one, preferred_element_type=jnp.int32)
product = jnp.asarray(np.diag(x)) @ jnp.ones(2, jnp.int32)
print(f"convolve, preferred_element_type: {exact.dtype} {exact.tolist()}; product with a matrix: {product.dtype} {product.tolist()}")
flags = jnp.convolve(np.array([True, True]), np.array([True]))
print(f"booleans: {flags.dtype} {flags.tolist()}")
jax.config.update("jax_enable_x64", True)
wide = jnp.convolve(np.array([2**53 + 1]), np.array([1]))
print(f"int64 2**53 + 1: {wide.dtype} 2**53 + {int(wide[0]) - 2**53}")
if (
    changed
    or any((each.dtype.name, each.tolist()) != ("int32", [2**24 + 1, 3]) for each in (exact, product))
    or (flags.dtype.name, flags.tolist()) != ("float32", [1, 1])
    or (wide.dtype.name, int(wide[0])) != ("float64", 2**53)
):
    sys.exit("the behaviour has changed")
print("as described: integers are convolved as floats")
PYTHON
"$work/venv/bin/python" -W ignore "$work/convolve.py"
