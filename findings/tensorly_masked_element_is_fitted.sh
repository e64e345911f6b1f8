#!/usr/bin/env bash
# TensorLy's parafac fits an element that its mask excludes: with 100 in place of a missing 0.55, the reconstruction there is 99.97.
#
# Expected: a result that does not depend on the number in an excluded element, because the mask marks it as missing. Seen with tensorly
# 0.10.0, scipy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30, for a 6 x 7 x 8 tensor of rank 2 with one excluded element: the
# number is used for the start or the first update, and replaced by the reconstruction only after it. A number far from the others takes
# one of the two components for itself, and stays after 2000 iterations, and other elements have errors of up to 0.28 in place of 1e-13.
# 0 and 1 are right, as the true number is. Tucker and non_negative_parafac have this with init="svd", the default, and not with
# init="random"; non_negative_parafac reconstructs 100000 there. No warning is given. Files mark missing values by numbers such as -9999.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 tensorly==0.10.0
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import tensorly
from tensorly.decomposition import non_negative_parafac, parafac, tucker

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorly", "scipy", "numpy")))
generator = np.random.default_rng(0)
true = tensorly.cp_to_tensor((None, [generator.random((length, 2)) for length in (6, 7, 8)]))
place = 0, 0, 0
mask = np.ones_like(true)
mask[place] = 0
rows = {
    ("parafac", "svd"): (0.55, 0.0, 1.0, 100.0),
    ("parafac", "random"): (0.55, 0.0, 1.0, 100.0),
    ("tucker", "svd"): (0.55, 0.0, 1.0, 100.0),
    ("tucker", "random"): (0.0, 100.0),
    ("non_negative_parafac", "svd"): (0.0, 100.0),
    ("non_negative_parafac", "random"): (0.0, 100.0),
}
functions = {"parafac": parafac, "tucker": tucker, "non_negative_parafac": non_negative_parafac}
changed = False
for (name, init), numbers in rows.items():
    for number in numbers:
        tensor = true.copy()
        tensor[place] = number
        rank = [2, 2, 2] if name == "tucker" else 2
        result = functions[name](tensor, rank=rank, n_iter_max=2000, tol=1e-15, mask=mask, init=init, random_state=0)
        seen = tensorly.tucker_to_tensor(result) if name == "tucker" else tensorly.cp_to_tensor(result)
        error = float(np.abs((seen - true) * mask).max())
        print(f"{name}, init={init}, excluded {number}: {seen[place]:.4g} for {true[place]:.4g}, largest error elsewhere {error:.1e}")
        wrong = number == 100 and (init == "svd" or name == "parafac")
        changed |= (error > 0.1) != wrong or (abs(seen[place] - true[place]) > 1) != wrong
        changed |= name == "parafac" and wrong and abs(seen[place] - 100) > 5
if changed:
    sys.exit("the behaviour has changed")
print("as described: the excluded number is fitted")
PYTHON
