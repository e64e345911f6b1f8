#!/usr/bin/env bash
# The density of pomegranate's LogNormal is the normal density of the logarithm, without the division by the number.
#
# Expected: the logarithm of a density, with the integral 1, as SciPy and PyTorch compute it and as the other
# distributions of pomegranate do. Seen with pomegranate 1.1.2, PyTorch 2.14.1, SciPy 1.17.1 and NumPy 2.4.6 on
# Linux: the integral is 1.79 for the parameters 0.5 and 0.16, and it is always the mean. fit returns the right
# parameters, so that the distribution looks right alone. Beside other distributions, as in a mixture or in a
# Bayes classifier, numbers above 1 are drawn to it: the classifier finds 3 lognormal with 71 percent in place
# of 45, and decides for the other class than the densities. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 torch==2.14.1 pomegranate==1.1.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.stats
import torch
from pomegranate.bayes_classifier import BayesClassifier
from pomegranate.distributions import Exponential, LogNormal

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pomegranate", "torch", "scipy", "numpy")))
changed = False
x = np.exp(np.linspace(-8, 8, 20001))
for mean, variance in ((0.5, 0.16), (-1.0, 0.25), (2.0, 1.0)):
    own = LogNormal(torch.tensor([mean]), torch.tensor([variance]), covariance_type="diag")
    right = scipy.stats.lognorm(np.sqrt(variance), scale=np.exp(mean))
    seen = own.log_probability(torch.tensor(x, dtype=torch.float32)[:, None]).double().numpy()
    other = torch.distributions.LogNormal(mean, np.sqrt(variance)).log_prob(torch.tensor(x)).numpy()
    integrals = [float(np.trapezoid(np.exp(v), x)) for v in (seen, other, right.logpdf(x))]
    print(f"{mean} and {variance}: integral {integrals[0]:.6f}, of PyTorch {integrals[1]:.6f}, SciPy {integrals[2]:.6f};", end=" ")
    print(f"mean {right.mean():.6f}")
    changed |= not np.allclose(integrals, [right.mean(), 1, 1], rtol=1e-4)
    changed |= not np.allclose(seen - np.log(x), right.logpdf(x), rtol=1e-4, atol=1e-4)
    fitted = LogNormal([0.0], [1.0], covariance_type="diag")
    fitted.fit(torch.tensor(right.rvs((20000, 1), random_state=0), dtype=torch.float32))
    changed |= not np.allclose([fitted.means.item(), fitted.covs.item()], [mean, variance], rtol=0.05)
scale = 5.0
wide = scipy.stats.lognorm(1, scale=np.exp(2))
narrow = scipy.stats.expon(scale=scale)
classes = [LogNormal(torch.tensor([2.0]), torch.tensor([1.0]), covariance_type="diag"), Exponential(torch.tensor([scale]))]
classifier = BayesClassifier(classes, priors=[0.5, 0.5])
for point in (1.0, 3.0, 10.0):
    seen = classifier.predict_proba(torch.tensor([[point]]))[0, 0].item()
    right = wide.pdf(point) / (wide.pdf(point) + narrow.pdf(point))
    wrong = point * wide.pdf(point) / (point * wide.pdf(point) + narrow.pdf(point))
    print(f"probability that {point} is lognormal and not exponential: {seen:.4f}, right {right:.4f}")
    changed |= not np.isclose(seen, wrong, rtol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the integral of the density is the mean")
PYTHON
