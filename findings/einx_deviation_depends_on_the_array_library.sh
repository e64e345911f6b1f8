#!/usr/bin/env bash
# einx.std of 1, 2, 3 and 4 is 1.118 for a NumPy or JAX array and 1.291 for a PyTorch tensor; of one number it is 0 or NaN.
#
# Expected: one number for all array libraries, because einx describes an operation independent of them. Seen with einx 0.4.3, jax 0.10.2,
# torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: einx calls the function std of the library, which divides by n in NumPy
# and JAX and by n - 1 in PyTorch. einx.var differs in the same way. einx.logsumexp of two masked scores, -inf and -inf, is NaN for NumPy,
# and -inf, the right result, for JAX and PyTorch. No warning is given. A norm over an axis of size 1 is NaN with PyTorch only, and
# weights that were trained with one library are evaluated with other variances by another.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 einx==0.4.3 jax==0.10.2 jaxlib==0.10.2 torch==2.14.1
cat > "$work/deviation.py" <<'PYTHON'
import importlib.metadata
import sys

import einx
import jax.numpy as jnp
import numpy as np
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("einx", "jax", "torch", "numpy")))
nan, inf = np.nan, np.inf
libraries = {
    "NumPy": (np.asarray, [1.118, 1.25, 0, nan]),
    "JAX": (jnp.asarray, [1.118, 1.25, 0, -inf]),
    "PyTorch": (torch.as_tensor, [1.291, 1.6667, nan, -inf]),
}
ramp = np.array([[1, 2, 3, 4]], np.float32)
masked = np.full((1, 2), -inf, np.float32)
changed = False
for name, (convert, expected) in libraries.items():
    results = [
        einx.std("a [b]", convert(ramp)),
        einx.var("a [b]", convert(ramp)),
        einx.std("a [b]", convert(ramp[:, :1])),
        einx.logsumexp("a [b]", convert(masked)),
    ]
    results = [float(np.asarray(result)[0]) for result in results]
    print(f"{name}: deviation {results[0]:.4f}, variance {results[1]:.4f}, of one number {results[2]}, logsumexp {results[3]}")
    changed |= not np.allclose(results, expected, atol=1e-3, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the results depend on the array library")
PYTHON
HOME="$work" JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore "$work/deviation.py"
