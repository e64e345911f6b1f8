#!/usr/bin/env bash
# MLX's exp is infinite from 88.0001 on, where float32 has numbers up to exp(88.72).
#
# Expected: exp(88.5) is 2.7e38, as mx.expm1(88.5), NumPy and PyTorch return, with an error of about one unit in the last place. Seen with
# mlx 0.32.4 and NumPy 2.4.6 on a CPU (x86-64 Linux): exp(88.5) is infinite, exp(-87.7) is 0, and within the range the error is up to 60
# units in the last place. The derived sigmoid has the same error. A comparison with a tolerance of a few units fails.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" numpy==2.4.6 mlx==0.32.4 mlx-cpu==0.32.4
"$work/venv/bin/python" - <<'PYTHON'
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
x = np.linspace(-80, 80, 400001, dtype=np.float32)


def error(function, exact):
    exact = exact(x.astype(np.float64))
    return float(np.max(np.abs(np.array(function(mx.array(x))) - exact) / np.spacing(exact.astype(np.float32))))


edges = {f"{name}({value})": function(mx.array([value])).item() for name, function, value in (
    ("exp", mx.exp, 88.0), ("exp", mx.exp, 88.5), ("expm1", mx.expm1, 88.5), ("exp", mx.exp, -87.0), ("exp", mx.exp, -87.7)
)}
errors = {
    "exp": error(mx.exp, np.exp),
    "tanh": error(mx.tanh, np.tanh),
    "sigmoid": error(mx.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
for name, value in edges.items():
    print(f"{name} = {value:g}; NumPy: {getattr(np, name.split('(')[0])(np.float32(name.split('(')[1][:-1])):g}")
for name, value in errors.items():
    print(f"{name}: error of at most {value:.1f} units in the last place")
if (
    [f"{value:.2g}" for value in edges.values()] != ["1.7e+38", "inf", "2.7e+38", "1.6e-38", "0"]
    or not 50 < errors["exp"] < 70
    or not 50 < errors["sigmoid"] < 70
    or errors["tanh"] > 4
):
    sys.exit("the behaviour has changed")
print("as described: exp(88.5) is infinite")
PYTHON
