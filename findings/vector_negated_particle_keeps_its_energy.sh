#!/usr/bin/env bash
# Vector's minus a particle that is given by its mass has the energy of the particle.
#
# Expected: minus the energy, as for the same particle given by x, y, z and t, which isclose calls equal to
# the first. Seen with Vector 1.9.0 and NumPy 2.4.6 on Linux for single vectors and for arrays, with the
# operators -v, v * -1 and v / -1 and with scale: in coordinates with tau, the mass and the momentum are
# scaled, and the sign of the energy is lost. The energy of v + (-v) is 10.1, and that of v - v is 0. The
# docstring of scale has the vector's length changed and not its direction. A missing energy is the sum of the
# negated particles. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 vector==1.9.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import vector

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("vector", "numpy")))
particle = vector.obj(rho=3.0, phi=0.5, eta=1.0, tau=2.0)
energy = float(np.sqrt(2.0**2 + (3 * np.cosh(1)) ** 2))
cases = {
    "by mass": particle,
    "array by mass": vector.array({"rho": [3.0], "phi": [0.5], "eta": [1.0], "tau": [2.0]}),
    "by x, y, z and t": particle.to_xyzt(),
    "by rho, phi, eta and t": particle.to_rhophietat(),
}
changed = not particle.isclose(particle.to_xyzt()) or (-particle).isclose(-particle.to_xyzt())
for name, v in cases.items():
    seen = {
        "v": v.t,
        "-v": (-v).t,
        "v * -1": (v * -1).t,
        "v / -1": (v / -1).t,
        "v.scale(-1)": v.scale(-1).t,
        "v - v": (v - v).t,
        "v + (-v)": (v + (-v)).t,
    }
    seen = {what: float(np.ravel(value)[0]) for what, value in seen.items()}
    print(f"{name}: energy of " + ", ".join(f"{what} {value:.4f}" for what, value in seen.items()))
    sign = 1 if "mass" in name else -1
    changed |= not np.allclose(list(seen.values()), [energy, *[sign * energy] * 4, 0, energy + sign * energy])
    changed |= not np.allclose((v + (-v)).to_xyz().mag, 0)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the energy keeps its sign")
PYTHON
