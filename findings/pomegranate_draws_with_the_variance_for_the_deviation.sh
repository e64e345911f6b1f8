#!/usr/bin/env bash
# Samples of pomegranate's normal distribution with a diagonal covariance have the variance as standard deviation.
#
# Expected: a deviation of 2 for the variance 4, as for the same distribution with a full covariance, because
# log_probability and fit take the number for the variance. Seen with pomegranate 1.1.2, PyTorch 2.14.1, SciPy
# 1.17.1 and NumPy 2.4.6 on Linux: the deviation is 4 for the variance 4, and a tenth of the right one for the
# variance 0.01; LogNormal does the same. A distribution that is fitted to its own samples has the variance 16
# in place of 4, and after another time 256. Samples of StudentT have the mean as degrees of freedom and the
# variance as centre. Mixtures and hidden Markov models generate data that are too wide or too narrow. No
# warning is given.
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
from pomegranate.distributions import LogNormal, Normal, StudentT

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pomegranate", "torch", "scipy", "numpy")))
torch.manual_seed(0)
changed = False
for variance in (4.0, 1.0, 0.01):
    diagonal = Normal(torch.tensor([1.0]), torch.tensor([variance]), covariance_type="diag")
    full = Normal(torch.tensor([1.0]), torch.tensor([[variance]]), covariance_type="full")
    deviations = [d.sample(200000).double().std().item() for d in (diagonal, full)]
    point = torch.tensor([[1.7]])
    densities = [d.log_probability(point).item() for d in (diagonal, full)]
    right = scipy.stats.norm(1, np.sqrt(variance)).logpdf(1.7)
    print(f"variance {variance}: deviation of the samples {deviations[0]:.4f} (diagonal) and {deviations[1]:.4f} (full);")
    print(f"    logarithmic density at 1.7 {densities[0]:.4f} and {densities[1]:.4f}, right {right:.4f}")
    changed |= not np.allclose(deviations, [variance, np.sqrt(variance)], rtol=0.02)
    changed |= not np.allclose(densities, right, rtol=1e-4)
fitted, variances = Normal(torch.tensor([1.0]), torch.tensor([4.0]), covariance_type="diag"), []
for _ in range(2):
    samples = fitted.sample(200000)
    fitted = Normal(covariance_type="diag")
    fitted.fit(samples)
    variances.append(fitted.covs.item())
print(f"variance 4 fitted to samples once and twice: {np.round(variances, 1).tolist()}")
changed |= not np.allclose(variances, [16, 256], rtol=0.05)
logarithm = LogNormal(torch.tensor([0.5]), torch.tensor([0.16]), covariance_type="diag").sample(200000).log().std().item()
student = StudentT(5, torch.tensor([1.0]), torch.tensor([4.0]), covariance_type="diag")
quartiles = np.quantile(student.sample(200000).numpy(), [0.25, 0.5, 0.75])
print(f"LogNormal with 0.16: deviation of the logarithms {logarithm:.4f}, right 0.4")
print(f"StudentT with the mean 1, 4 and 5 degrees: quartiles {quartiles.round(2).tolist()},", end=" ")
print(f"right {scipy.stats.t(5, 1, 2).ppf([0.25, 0.5, 0.75]).round(2).tolist()}")
changed |= not np.isclose(logarithm, 0.16, rtol=0.02)
changed |= not np.allclose(quartiles, scipy.stats.t(1, 4, 1).ppf([0.25, 0.5, 0.75]), rtol=0.03)
density = student.log_probability(torch.tensor([[1.7]])).item()
changed |= not np.isclose(density, scipy.stats.t(5, 1, 2).logpdf(1.7), rtol=1e-4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the variance is the deviation of the samples")
PYTHON
