#!/usr/bin/env bash
# In DALI and MLX the integer 1 to the power -1 is 0.
#
# Expected: 1, because the result is exact, and -1 for the base -1, or an error, as NumPy raises it. Seen with nvidia-dali-cuda120 2.4.0 (CPU
# operators), mlx 0.32.4 (CPU) and NumPy 2.4.6: an integer to a negative integer power is 0, also for the bases 1 and -1. The type of the
# exponent decides: x ** -1 is 0, 0 and 0 for the int32 numbers 1, -1 and 2, and x ** -1.0 is 1, -1 and 0.5. 1 / x of the same numbers is 1, -1
# and 0.5 in both libraries.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" numpy==2.4.6 mlx==0.32.4 mlx-cpu==0.32.4
"${pip[@]}" nvidia-dali-cuda120==2.4.0
cat > "$work/powers.py" <<'PYTHON'
import sys

import mlx.core as mx
import numpy as np
from nvidia.dali import fn, pipeline_def

bases = np.array([1, -1, 2], np.int32)


def dali(function):
    def source():
        return [bases]

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        return function(fn.external_source(source=source))

    instance = pipeline()
    instance.build()
    return np.asarray(instance.run()[0].at(0)).tolist()


x = mx.array(bases)
rows = {
    "DALI x ** -1": (dali(lambda x: x**-1), [0, 0, 0]),
    "DALI x ** -2": (dali(lambda x: x**-2), [0, 0, 0]),
    "DALI x ** -1.0": (dali(lambda x: x**-1.0), [1, -1, 0.5]),
    "DALI 1 / x": (dali(lambda x: 1 / x), [1, -1, 0.5]),
    "MLX x ** -1": ((x**-1).tolist(), [0, 0, 0]),
    "MLX x ** -2": ((x**-2).tolist(), [0, 0, 0]),
    "MLX x ** -1.0": ((x**-1.0).tolist(), [1, -1, 0.5]),
    "MLX 1 / x": ((1 / x).tolist(), [1, -1, 0.5]),
}
for name, (seen, _) in rows.items():
    print(f"{name}: {seen}")
try:
    print("NumPy x ** -1:", bases**-1)
    sys.exit("the behaviour has changed")
except ValueError as error:
    print("NumPy x ** -1:", error)
if any(seen != expected for seen, expected in rows.values()):
    sys.exit("the behaviour has changed")
print("as described: 1 to the power -1 is 0")
PYTHON
"$work/venv/bin/python" -W ignore "$work/powers.py"
