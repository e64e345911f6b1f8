#!/usr/bin/env bash
# MNN's exp is never 0, infinite or NaN, and abs and tanh turn NaN into numbers.
#
# Expected: exp(100) is infinite, exp(-inf) is 0, exp(nan) is NaN, and softplus(1000) is 1000. Seen with mnn 3.6.1 and NumPy 2.4.6 on a CPU
# (x86-64 Linux): exp returns at most 6.08e37, the value for 87, and at least 1.6e-38. exp(nan) is 1.6e-38, softplus returns 87 for all
# larger numbers, abs(nan) is 0, tanh(nan) is 1. Softmax of six zeros and a NaN is NaN; of seven zeros and a NaN, it is eight times 1.65e-18,
# which is not NaN and has a sum far from 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 mnn==3.6.1
"$work/venv/bin/python" - <<'PYTHON'
import sys

import MNN.expr as expr
import numpy as np

inf, nan = np.inf, np.nan


def run(name, *values):
    array = np.array(values, np.float32)
    result = [float(f"{value:.3g}") for value in getattr(expr, name)(expr.const(array, [len(values)], expr.NCHW)).read()]
    print(f"{name} of {list(values)}: {result}")
    return result


low, high = 1.65e-38, 6.08e37
results = [
    run("exp", 87.0, 100.0, inf, -inf, nan),
    run("softplus", 50.0, 100.0, 1000.0),
    run("abs", nan),
    run("tanh", nan),
    run("sqrt", nan),
    run("softmax", *[0.0] * 6, nan),
    run("softmax", *[0.0] * 7, nan),
]
expected = [[high, high, high, low, low], [50.0, 87.0, 87.0], [0.0], [1.0], [nan], [nan] * 7, [1.65e-18] * 8]
if str(results) != str(expected):
    sys.exit("the behaviour has changed")
print("as described: exp and softplus are bounded")
PYTHON
