#!/usr/bin/env bash
# autograd's gradient of the logarithm of the chi-square density with 2.5 degrees of freedom at 1 is 0 in place of -0.25.
#
# Expected: the derivative (df - 2 - x) / (2 x), as for 2 and 3 degrees of freedom, or an error. Seen with autograd 1.9.1, SciPy 1.17.1 and NumPy 2.4.6 on Linux:
# the gradients of logpdf and pdf are set to 0 wherever the degrees are not whole, while the densities are right, and so is the gradient of
# cdf. The same distribution as a gamma distribution has the right gradient. Fractions of degrees come from estimates, such as Welch's. An optimizer
# finds that each point is the maximum and stops where it starts. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 autograd==1.9.1
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.optimize
import scipy.stats
from autograd import elementwise_grad, value_and_grad
from autograd.scipy.stats import chi2, gamma

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("autograd", "scipy", "numpy")))
points, step = np.array([0.5, 1.0, 4.0]), 1e-6
changed = False
for degrees in (1.0, 2.0, 2.5, 3.0, 3.000001, 7.3):
    right = (degrees - 2 - points) / (2 * points)
    slope = (scipy.stats.chi2.logpdf(points + step, degrees) - scipy.stats.chi2.logpdf(points - step, degrees)) / (2 * step)
    logarithm = elementwise_grad(lambda x: chi2.logpdf(x, degrees))(points)
    density = elementwise_grad(lambda x: chi2.pdf(x, degrees))(points)
    cumulative = elementwise_grad(lambda x: chi2.cdf(x, degrees))(points)
    other = elementwise_grad(lambda x: gamma.logpdf(x / 2, degrees / 2))(points)
    print(f"{degrees} degrees: logpdf {logarithm.round(4).tolist()}, differences {slope.round(4).tolist()}, gamma {other.round(4).tolist()}", end="; ")
    print(f"pdf {density.round(4).tolist()}, cdf {cumulative.round(4).tolist()}")
    whole = degrees % 1 == 0
    changed |= not np.allclose(logarithm, right if whole else 0, atol=1e-12)
    changed |= not np.allclose(density, scipy.stats.chi2.pdf(points, degrees) * right if whole else 0, atol=1e-12)
    changed |= not np.allclose(slope, right, atol=1e-5) or not np.allclose(other, right)
    changed |= not np.allclose(cumulative, scipy.stats.chi2.pdf(points, degrees))
for degrees, described in ((7.0, 5.0), (7.3, 1.0)):
    found = scipy.optimize.minimize(value_and_grad(lambda x: -chi2.logpdf(x[0], degrees)), np.array([1.0]), jac=True, bounds=[(0.01, 50)])
    print(f"most likely value of {degrees} degrees from 1: {found.x[0]:.4f}, success {found.success}; by definition {degrees - 2:.1f}")
    changed |= abs(found.x[0] - described) > 1e-3 or not found.success
if changed:
    sys.exit("the behaviour has changed")
print("as described: the gradient is zero")
PYTHON
