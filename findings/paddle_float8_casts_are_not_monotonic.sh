#!/usr/bin/env bash
# Paddle's casts to eight-bit floats are not monotonic: a band of numbers becomes NaN or infinity, and larger numbers become the maximum.
#
# Expected: numbers beyond the range all saturate, or all become NaN (float8_e4m3fn) or infinity (float8_e5m2). Seen with paddlepaddle 3.3.1
# and NumPy 2.4.6 on a CPU: in float8_e4m3fn 464 becomes 448, 465 to 479 become NaN, and 480 and above become 448. In float8_e5m2 61440 to
# 65535 become infinity, 65536 and above become 57344, and infinity itself becomes 57344. An overflow to infinity is hidden by such a cast,
# and a number slightly beyond the range is not clipped.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 paddlepaddle==3.3.1
"$work/venv/bin/python" - 2>"$work/warnings" <<'PYTHON' || { cat "$work/warnings" >&2; exit 1; }
import sys

import numpy as np
import paddle

inf, nan = np.inf, np.nan
rows = {
    "float8_e4m3fn": {448.0: 448.0, 464.0: 448.0, 465.0: nan, 479.0: nan, 480.0: 448.0, 1e9: 448.0, inf: 448.0},
    "float8_e5m2": {57344.0: 57344.0, 61439.0: 57344.0, 61440.0: inf, 65535.0: inf, 65536.0: 57344.0, 1e9: 57344.0, inf: 57344.0},
}
changed = False
for name, row in rows.items():
    x = paddle.to_tensor(np.array(list(row), np.float32), place=paddle.CPUPlace())
    seen = x.astype(name).astype("float32").numpy()
    print(f"{name}:", ", ".join(f"{a:g} -> {b:g}" for a, b in zip(row, seen)))
    changed |= not np.array_equal(seen, np.array(list(row.values()), np.float32), equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the casts are not monotonic")
PYTHON
