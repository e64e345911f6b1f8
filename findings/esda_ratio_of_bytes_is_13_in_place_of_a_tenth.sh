#!/usr/bin/env bash
# esda's general G of a grid of bytes is 13.5, where it is a ratio of at most 1, and 0.0935 for the same numbers as int64; Geary's C is 0.008 in place of 1.17.
#
# Expected: the numbers of the values, as Moran's I has for all types. Seen with esda 2.9.0, libpysal 4.14.1 and NumPy 2.4.6 on Linux: the differences and the
# products of neighbours are formed in the type of the values, where they wrap around, before the weights, which are floats, are
# applied. A C of 1.17 says that neighbours differ more than others, and one of 0.008 that they are alike. Bands of satellite
# images are uint8 and int16. For C no warning is given, and for G only some about its variance.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 libpysal==4.14.1 esda==2.9.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import esda
import libpysal
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("esda", "libpysal", "numpy")))
side = 6
numbers = np.random.default_rng(0).integers(0, 256, side * side)
full = libpysal.weights.lat2W(side, side).full()[0]
rows = full / full.sum(1, keepdims=True)
z = numbers - numbers.mean()
differences = (numbers[:, None] - numbers[None]) ** 2
c = (len(z) - 1) * (rows * differences).sum() / (2 * rows.sum() * (z @ z))
products = np.outer(numbers, numbers)
g = (full * products).sum() / (products.sum() - np.trace(products))
i = len(z) / rows.sum() * (z @ rows @ z) / (z @ z)
print(f"by definition: C {c:.6f}, G {g:.6f}, I {i:.6f}")
described = {"float64": (c, g), "int64": (c, g), "int32": (c, g), "int16": (0.265680, 0.366962), "uint8": (0.008258, 13.544869)}
changed = False
for dtype, expected in described.items():
    values = numbers.astype(dtype)
    results = []
    for statistic, attribute in ((esda.Geary, "C"), (esda.G, "G"), (esda.Moran, "I")):
        results.append(float(getattr(statistic(values, libpysal.weights.lat2W(side, side), permutations=0), attribute)))
    print(f"{dtype}: C {results[0]:.6f}, G {results[1]:.6f}, I {results[2]:.6f}")
    changed |= not np.allclose(results, (*expected, i), rtol=1e-4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: differences and products of neighbours wrap around")
PYTHON
