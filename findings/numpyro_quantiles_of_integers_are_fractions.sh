#!/usr/bin/env bash
# In NumPyro, the quantiles of DiscreteUniform(2, 7) at 1, 10 and 90 percent are 1.06, 1.6 and 6.4, where SciPy has 2, 2 and 7.
#
# Expected: for each probability, the smallest integer of the support whose cumulative probability reaches it, as the quantile function of a
# discrete distribution is defined, or an error, as for NumPyro's Poisson, binomial and geometric distributions. Seen with numpyro
# 0.22.0, jax 0.10.2, scipy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30: icdf is a straight line from the lower bound minus
# 1 to the upper bound, without a step to the next integer. It returns numbers below the support for a sixth of the probabilities, and all
# fractions have the log_prob minus infinity. cdf and sample of the same class are right. No warning is given. Quasi-random numbers that
# icdf maps to this distribution are not integers, and a cast to integers makes the lowest one 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 jax==0.10.2 numpyro==0.22.0
JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from numpyro import distributions

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpyro", "jax", "scipy", "numpy")))
low, high = 2, 7
uniform, reference = distributions.DiscreteUniform(low, high), scipy.stats.randint(low, high + 1)
probabilities = np.array([0.01, 0.1, 0.2, 0.45, 0.75, 0.9, 0.99], np.float32)
seen = np.asarray(uniform.icdf(jnp.asarray(probabilities)))
wanted = reference.ppf(probabilities)
inside = np.asarray(uniform.support(seen))
print(f"quantiles at {np.round(probabilities.astype(float), 2).tolist()}: NumPyro {np.round(seen.astype(float), 2).tolist()}, SciPy {wanted.tolist()}")
print(f"    log_prob {np.asarray(uniform.log_prob(seen)).round(2).tolist()}, in the support {inside.tolist()}")
changed = not np.allclose(seen, low - 1 + probabilities * (high - low + 1), atol=1e-3) or inside.any()
integers = np.arange(low, high + 1)
changed |= not np.allclose(uniform.cdf(integers), reference.cdf(integers), atol=1e-6)
samples = np.asarray(uniform.sample(jax.random.key(0), (1000,)))
changed |= not np.isin(samples, integers).all()
for other in (distributions.Poisson(3.0), distributions.BinomialProbs(0.3, 10), distributions.GeometricProbs(0.3)):
    try:
        other.icdf(jnp.asarray(probabilities))
    except NotImplementedError as error:
        print(f"{type(other).__name__}: {type(error).__name__}")
    else:
        changed = True
if changed:
    sys.exit("the behaviour has changed")
print("as described: quantiles are between the integers")
PYTHON
