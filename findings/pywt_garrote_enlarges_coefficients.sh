#!/usr/bin/env bash
# The garrote threshold of PyWavelets enlarges int16 numbers and returns 0 for most bytes: -800 becomes -846.875, and 100 becomes 0.
#
# Expected: -798.875 and 91, as for the same numbers in int32, because the result is float64 for each type, and a garrote threshold does
# not enlarge numbers. Seen with PyWavelets 1.9.0 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29: the function squares its input in the type
# of the input, and the square wraps around above 181 in int16 and above 15 in uint8. The modes soft and hard are right. No warning is
# given. Samples of 12 or 16 bits from a scanner contain more noise after this denoising than before.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 PyWavelets==1.9.0
cat > "$work/garrote.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import pywt

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("PyWavelets", "numpy")))
threshold = 30
cases = [
    (np.int16, [-800, 400, 1000], [-846.875, 387.5553, 946.934]),
    (np.uint8, [40, 100, 120], [0, 0, 0]),
    (np.int8, [40, 100, 120], [0, 0, 0]),
    (np.int32, [-800, 400, 1000], [-798.875, 397.75, 999.1]),
    (np.int32, [40, 100, 120], [17.5, 91, 112.5]),
]
changed = False
for dtype, numbers, expected in cases:
    x = np.array(numbers, dtype)
    garrote = pywt.threshold(x, threshold, "garrote")
    soft = pywt.threshold(x, threshold, "soft")
    hard = pywt.threshold(x, threshold, "hard")
    print(f"{x.dtype} {numbers}: garrote {garrote.round(3).tolist()}, soft {soft.tolist()}, hard {hard.tolist()}")
    changed |= garrote.dtype != np.float64 or not np.allclose(garrote, expected, atol=1e-3)
    wide = x.astype(np.float64)
    changed |= not np.array_equal(soft, np.sign(wide) * (abs(wide) - threshold)) or not np.array_equal(hard, wide)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the garrote threshold squares narrow integers in their own type")
PYTHON
HOME="$work" "$work/venv/bin/python" "$work/garrote.py"
