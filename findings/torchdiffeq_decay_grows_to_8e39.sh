#!/usr/bin/env bash
# torchdiffeq's explicit_adams solves y' = -y to 8e39 with a step of 0.01, and to 3e11 with the ten times larger step.
#
# Expected: exp(-5) = 0.0067, with a smaller error for smaller steps, as all other solvers return. Seen with torchdiffeq 0.2.5, torch
# 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, in float64: by default the solver combines the last twelve derivatives, with
# coefficients whose magnitudes have the sum 1153. This formula is stable for the equation only with steps below 0.002. From 0.1 to 0.01,
# a smaller step gives the error more steps to grow. At t = 1 the result is 0.37 with a step of 0.1, so that a short test passes.
# max_order=4 is right for each step, and implicit_adams with its default order is right too. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 torchdiffeq==0.2.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math
import sys

import torch
from torchdiffeq import odeint

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchdiffeq", "torch")))
times = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)


def solved(method, step, **options):
    start = torch.ones(1, dtype=torch.float64)
    return odeint(lambda t, y: -y, start, times, method=method, options=dict(step_size=step, **options)).flatten().tolist()


changed = False
for step in (0.1, 0.05, 0.01, 0.001):
    results = {
        "explicit_adams": solved("explicit_adams", step),
        "explicit_adams, max_order=4": solved("explicit_adams", step, max_order=4),
        "implicit_adams": solved("implicit_adams", step),
        "rk4": solved("rk4", step),
    }
    print(f"step {step}: " + "; ".join(f"{name} y(1) = {values[1]:.4g}, y(5) = {values[2]:.4g}" for name, values in results.items()))
    for name, values in results.items():
        right = math.isclose(values[2], math.exp(-5), rel_tol=1e-2)
        changed |= right == (name == "explicit_adams" and step > 0.001)
small, large = solved("explicit_adams", 0.01)[2], solved("explicit_adams", 0.1)[2]
changed |= abs(small) < 1e30 or abs(large) < 1e6 or abs(small) < abs(large)
changed |= not math.isclose(solved("explicit_adams", 0.1)[1], math.exp(-1), rel_tol=1e-2)
if changed:
    sys.exit("the behaviour has changed")
print("as described: a smaller step has a larger error")
PYTHON
