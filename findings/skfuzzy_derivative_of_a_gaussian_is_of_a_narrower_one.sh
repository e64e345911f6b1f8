#!/usr/bin/env bash
# scikit-fuzzy's derivative of its Gaussian membership function by the mean is 0.735759 at one sigma, where the slope of the function is 0.606531.
#
# Expected: the derivative of gaussmf, as for gbellmf and sigmf. Seen with scikit-fuzzy 0.5.0, SciPy 1.17.1 and NumPy 2.4.6 on Linux: gaussmf divides by 2 sigma^2,
# and partial_dmf differentiates a function that divides by sigma^2. The derivatives by the mean and by sigma are twice as large near the
# mean, and a forty-fifth at three sigma, with the right signs, so that the training of a neuro-fuzzy network goes on,
# with other steps. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 networkx==3.6.1 packaging==26.4 scikit-fuzzy==0.5.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import skfuzzy

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("scikit-fuzzy", "scipy", "numpy")))
functions = {
    "gaussmf": (skfuzzy.gaussmf, {"mean": 0.0, "sigma": 1.0}),
    "gbellmf": (skfuzzy.gbellmf, {"a": 2.0, "b": 3.0, "c": 0.0}),
    "sigmf": (skfuzzy.sigmf, {"b": 0.5, "c": 1.7}),
}
step = 1e-6
changed = False
for name, (function, parameters) in functions.items():
    for which in parameters:
        for x in (0.1, 1.0, 3.0):
            above, below = ({**parameters, which: parameters[which] + sign * step} for sign in (1, -1))
            slope = float((function(np.array([x]), *above.values()) - function(np.array([x]), *below.values()))[0]) / (2 * step)
            seen = float(skfuzzy.partial_dmf(x, name, parameters, which))
            narrow = 2 * np.exp(-(x**2) / 2)
            print(f"{name} by {which} at {x}: {seen:.6f}, slope {slope:.6f}")
            changed |= not np.isclose(seen, slope * narrow if name == "gaussmf" else slope, rtol=1e-4, atol=1e-8)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the derivative belongs to a Gaussian without the 2")
PYTHON
