#!/usr/bin/env bash
# chaospy's density of Burr(2, 3) is 157 at 0.3, where the slope of its own distribution function is 1.28; its mean is 2.95, and that of its samples 0.59.
#
# Expected: one distribution: the density is the slope, and the mean that of the samples, as in SciPy. Seen with chaospy 4.3.21, SciPy 1.17.1 and NumPy 2.4.6
# on Linux: cdf and inv of Burr agree with SciPy's burr12, pdf and the moments do not, and the integral of the density is infinite. GeneralizedGamma(1, 2)
# has the right density and samples, and a mean of 2 in place of 0.886. Likelihoods by the density and polynomial chaos expansions, which are built
# on moments, are wrong by that. No warning is given. The documentation's example of Burr shows such a density, 92.9, between quantiles.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 chaospy==4.3.21
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import chaospy
import numpy as np
import scipy.stats

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("chaospy", "scipy", "numpy")))
step = 1e-5
middles = (np.arange(200000) + 0.5) / 200000
rows = {
    "Burr(2, 3)": (chaospy.Burr(2, 3), scipy.stats.burr12(2, 3), 157.427825, 2.945243),
    "GeneralizedGamma(1, 2)": (chaospy.GeneralizedGamma(1, 2), scipy.stats.gengamma(1, 2), 0.548359, 2),
    "GeneralizedGamma(2, 3)": (chaospy.GeneralizedGamma(2, 3), scipy.stats.gengamma(2, 3), 0.007096, 1.128379),
    "Gamma(2, 3)": (chaospy.Gamma(2, 3), scipy.stats.gamma(2, scale=3), 0.030161, 6),
}
changed = False
for name, (own, other, density, mean) in rows.items():
    slope = float((own.cdf(0.3 + step) - own.cdf(0.3 - step)) / (2 * step))
    seen = float(own.pdf(0.3)), float(chaospy.E(own))
    samples = float(np.mean(own.inv(middles)))
    print(f"{name}: density at 0.3 {seen[0]:.6f}, slope {slope:.6f}, SciPy {other.pdf(0.3):.6f}", end="; ")
    print(f"mean {seen[1]:.6f}, of samples {samples:.6f}, SciPy {other.mean():.6f}")
    changed |= not np.allclose(seen, (density, mean), rtol=1e-4)
    changed |= not np.isclose(slope, other.pdf(0.3), rtol=1e-4) or not np.isclose(samples, other.mean(), rtol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: density and moments belong to other distributions")
PYTHON
