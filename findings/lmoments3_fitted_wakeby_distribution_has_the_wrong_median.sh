#!/usr/bin/env bash
# The Wakeby distribution that lmoments3 fits to numbers with the median 0.99 has the median 2.28: a scale is applied twice.
#
# Expected: quantiles near those of the data, as of the other fitted distributions. Seen with lmoments3 1.0.8,
# SciPy 1.17.1 and NumPy 2.4.1 on Linux: lmom_fit returns gamma as Hosking defines it, a second scale beside
# alpha, and ppf, cdf, pdf and the mean multiply it by alpha once more. Hosking's formula with the fitted
# parameters has the quantiles of the data. lmom of the same object takes gamma as it is, so that the L-moments
# of the fit agree with those of the data, and the mean of the same fit is 4.02 in place of 1.63. With a
# negative delta, an upper bound, which Hosking admits, ppf and mean are NaN. A scale of 1 is right by chance.
# Return levels, for which the distribution is made, are wrong. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.1 scipy==1.17.1 lmoments3==1.0.8
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.stats
from lmoments3 import distr, lmom_ratios

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("lmoments3", "scipy", "numpy")))
levels = np.array([0.1, 0.5, 0.9, 0.99])
changed = False
for name, source in (("lognormal", scipy.stats.lognorm(1)), ("tenfold", scipy.stats.lognorm(1, scale=10)), ("gamma", scipy.stats.gamma(3, scale=2))):
    data = source.rvs(20000, random_state=0)
    fit = {key: float(value) for key, value in distr.wak.lmom_fit(data).items()}
    fitted = distr.wak(**fit)
    alpha, beta, gamma, delta = (fit[key] for key in ("scale", "beta", "gamma", "delta"))
    first, second = (1 - (1 - levels) ** beta) / beta, (1 - (1 - levels) ** -delta) / delta
    formula = fit["loc"] + alpha * first - gamma * second
    seen, of_data = fitted.ppf(levels), np.quantile(data, levels)
    print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in fit.items()))
    print(f"    ppf {seen.round(2).tolist()}, Hosking's formula {formula.round(2).tolist()}, of the data {of_data.round(2).tolist()};")
    print(f"    mean {fitted.mean():.4f}, lmom(1) {fitted.lmom(1)[0]:.4f}, of the data {data.mean():.4f}")
    changed |= not np.allclose(formula, of_data, rtol=0.06) or not np.allclose(fitted.lmom(2), lmom_ratios(data, 2), rtol=1e-4)
    if delta > 0:
        changed |= not np.allclose(seen, fit["loc"] + alpha * first - alpha * gamma * second) or fitted.mean() < 1.5 * data.mean()
    else:
        changed |= not np.isnan([*seen, fitted.mean()]).all()
    other = distr.gev(**distr.gev.lmom_fit(data))
    changed |= not np.isclose(other.mean(), data.mean(), rtol=1e-4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the quantiles are not those of the fit")
PYTHON
