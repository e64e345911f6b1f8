#!/usr/bin/env bash
# MNN's equal compares the bits of floats, and not_equal compares their values, so two numbers can be both or neither.
#
# Expected: equal is the opposite of not_equal, by the rules of IEEE 754. Seen with mnn 3.6.1 and NumPy 2.4.6 on a CPU (x86-64 Linux): NaN is
# equal and not equal to itself, and 0.0 is neither equal nor not equal to -0.0, in MNN.expr and in the == of MNN.numpy. The test x == x
# finds no NaN, and a comparison with 0 misses -0.0, which ceil(-0.5) returns. less_equal and greater_equal follow IEEE 754.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 mnn==3.6.1
"$work/venv/bin/python" - <<'PYTHON'
import sys

import MNN.expr as expr
import MNN.numpy as mnp
import numpy as np

pairs = [np.array(values, np.float32) for values in ([np.nan, 0.0, 1.0], [np.nan, -0.0, 1.0])]
x, y = (expr.const(values, [3], expr.NCHW) for values in pairs)
results = {
    name: [int(result) for result in getattr(expr, name)(x, y).read()]
    for name in ("equal", "not_equal", "less", "greater", "less_equal", "greater_equal")
}
results["MNN.numpy ==, ceil"] = (mnp.ceil(mnp.array([-0.5])) == mnp.array([0.0])).read().tolist()
exact = {name: getattr(np, name)(*pairs).astype(int).tolist() for name in results if hasattr(np, name)}
for name, result in results.items():
    print(f"{name}: {result}" + (f"; NumPy: {exact[name]}" if name in exact else ""))
expected = {
    **exact,
    "equal": [1, 0, 1],
    "not_equal": [1, 0, 0],
    "MNN.numpy ==, ceil": [0],
}
if results != expected:
    sys.exit("the behaviour has changed")
print("as described: NaN is equal and not equal to itself")
PYTHON
