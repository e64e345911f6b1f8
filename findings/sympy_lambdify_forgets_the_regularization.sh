#!/usr/bin/env bash
# SymPy's lambdify with mpmath computes the regularized incomplete beta function without its divisor: I(1; 2, 3) is 0.083 in place of 1.
#
# Expected: 1, the value of a distribution function at its end, as for lambdify with SciPy and for evalf, which computes with mpmath itself.
# Seen with sympy 1.14.0, mpmath 1.3.0, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: in the generated code, the name
# betainc_regularized stands for mpmath.betainc without regularized=True, so that both functions of SymPy return the same number. All
# values are too small by the complete beta function, a factor of 12 for the parameters 2 and 3, and 1260 for 5 and 6. No warning is given.
# A reference in high precision, the usual reason for mpmath, differs from the float64 function that it is meant to test.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 mpmath==1.3.0 sympy==1.14.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.special
import sympy

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("sympy", "mpmath", "scipy", "numpy")))
x = sympy.Symbol("x")
changed = False
for a, b in ((2, 3), (5, 6), (1, 1)):
    for point in (0.25, 0.5, 1.0):
        expression = sympy.betainc_regularized(a, b, 0, x)
        seen = {module: float(sympy.lambdify(x, expression, module)(point)) for module in ("mpmath", "scipy")}
        evaluated = float(expression.subs(x, point).evalf())
        plain = float(sympy.lambdify(x, sympy.betainc(a, b, 0, x), "mpmath")(point))
        wanted = float(scipy.special.betainc(a, b, point))
        print(f"I({point}; {a}, {b}): mpmath {seen['mpmath']:.6f}, SciPy {seen['scipy']:.6f}, evalf {evaluated:.6f}", end="")
        print(f", not regularized {plain:.6f}")
        changed |= not np.allclose([seen["scipy"], evaluated], wanted) or not np.isclose(seen["mpmath"], plain)
        changed |= not np.isclose(plain, wanted * scipy.special.beta(a, b))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the divisor is missing")
PYTHON
