#!/usr/bin/env bash
# dcor's distance correlation of two columns of bytes is 1343383 in place of 0.149, that of uint16 is 2.25: a correlation is at most 1.
#
# Expected: the result of the same numbers in float64 or int64, which dcor returns for all other types and with method="naive" for uint16. Seen with dcor
# 0.7, Numba 0.68.1, SciPy 1.17.1 and NumPy 2.4.6 on Linux: the default method for two columns computes with the type of
# the input, and products and negative differences wrap around; the method "mergesort" gives 0. The energy distance of bytes is 0.29 in place of
# 1.63, by wrapped differences. int16 raises an OverflowError; unsigned types give no warning. Gray values and counts have these types.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 numba==0.68.1 dcor==0.7
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import dcor
import numpy as np
import scipy
from scipy.spatial.distance import pdist, squareform

print(f"dcor {dcor.__version__}, SciPy {scipy.__version__}, NumPy {np.__version__}")
generator = np.random.default_rng(0)
x, y = generator.integers(0, 256, 60), generator.integers(0, 256, 60)


def centered(numbers):
    distances = squareform(pdist(numbers[:, None].astype(float)))
    return distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean()


a, b = centered(x), centered(y)
right = float(np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean())))
rows = {
    ("uint8", "auto"): 1343383.6752670165,
    ("uint8", "mergesort"): 0,
    ("uint8", "naive"): 0.3297856042764237,
    ("uint16", "auto"): 2.2540662367086877,
    ("uint16", "naive"): right,
    ("int64", "auto"): right,
    ("float64", "auto"): right,
}
changed = False
for (dtype, method), expected in rows.items():
    seen = float(dcor.distance_correlation(x.astype(dtype), y.astype(dtype), method=method))
    print(f"{dtype}, method {method}: {seen:.6f}; by definition {right:.6f}")
    changed |= not np.isclose(seen, expected, rtol=1e-6)
energies = [float(dcor.energy_distance(x.astype(dtype), y.astype(dtype))) for dtype in ("uint8", "float64")]
print(f"energy distance of uint8 and float64: {energies}")
changed |= not np.allclose(energies, [0.2867042898307817, 1.62888888888888], rtol=1e-6)
if changed:
    sys.exit("the behaviour has changed")
print("as described: unsigned types wrap around")
PYTHON
