#!/usr/bin/env bash
# In SigPy, the normal operator of overlapping blocks is the identity, so a least-squares solution is counted double where blocks overlap.
#
# Expected: A.N equals A.H * A, and LinearLeastSquares returns the array whose blocks it was given. Seen with sigpy 0.1.27, numba 0.68.1, scipy
# 1.17.1 and NumPy 2.4.6 on a CPU: A.N of ArrayToBlocks and of BlocksToArray is the identity for every stride. This is right only if the blocks
# cover the array once. With blocks of 3 and a stride of 2, A.H * A is 2 for the elements that two blocks share. LinearLeastSquares uses A.N:
# from the blocks of 0 to 8 it returns 0, 1, 4, 3, 8, 5, 12, 7, 8. A composition with another operator is right, because SigPy computes its
# normal operator. A reconstruction from overlapping patches gets too large values in the overlaps, and no warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 numba==0.68.1 sigpy==0.1.27
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import sigpy

length = 9
ones, x = np.ones(length), np.arange(float(length))
identity = sigpy.linop.Identity([length])
rows = {
    "stride 3": (sigpy.linop.ArrayToBlocks([length], [3], [3]), [1] * 9, [1] * 9, x),
    "stride 2": (sigpy.linop.ArrayToBlocks([length], [3], [2]), [1, 1, 2, 1, 2, 1, 2, 1, 1], [1] * 9, [0, 1, 4, 3, 8, 5, 12, 7, 8]),
    "stride 4": (sigpy.linop.ArrayToBlocks([length], [3], [4]), [1, 1, 1, 0, 1, 1, 1, 0, 0], [1] * 9, None),
    "stride 2, composed": (sigpy.linop.ArrayToBlocks([length], [3], [2]) * (2 * identity), None, None, x),
}
changed = False
for name, (blocks, counts, normal, solution) in rows.items():
    seen = np.real(blocks.H * (blocks * ones)).tolist(), np.real(blocks.N * ones).tolist()
    app = sigpy.app.LinearLeastSquares(blocks, blocks * x, max_iter=100, show_pbar=False)
    found = np.real(app.run()).round(6)
    print(f"{name}: A.H * A {seen[0]}, A.N {seen[1]}, solution {found.tolist()}")
    changed |= counts is not None and seen != (counts, normal)
    changed |= solution is not None and not np.allclose(found, solution)
if changed:
    sys.exit("the behaviour has changed")
print("as described: elements in two blocks are doubled")
PYTHON
