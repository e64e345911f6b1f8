#!/usr/bin/env bash
# Velocities of Geomstats for diagonal normal distributions are those of the deviations, and points have variances.
#
# Expected: log is the initial velocity of the geodesic, as its docstring and that of geodesic have it, and the
# squared norm of a change of the variance v is the Fisher information, 1 / (2 v ** 2). Seen with Geomstats
# 2.8.0, SciPy 1.17.1 and NumPy 2.3.5 on Linux: points have variances, as documented and as sample takes them,
# but exp, log and inner_product take the velocities of deviations. From the variance 1 to 4, log is 0.69, and
# the geodesic begins with 1.39, exp of which is at 16; the squared norm at the variance 4 is 0.5 in place of
# 0.03. dist, the geodesic between two points and exp of log are right, since two errors cancel. Gradients and
# lengths of paths are not. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.3.5 scipy==1.17.1 matplotlib==3.10.8 pandas==2.3.3 scikit-learn==1.9.1 joblib==1.6.0 geomstats==2.8.0
GEOMSTATS_BACKEND=numpy MPLCONFIGDIR="$work" "$work/venv/bin/python" -W ignore - 2> "$work/log" <<'PYTHON' || { cat "$work/log"; exit 1; }
import importlib.metadata
import sys

import numpy as np
import scipy.stats
from geomstats.information_geometry.normal import NormalDistributions

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("geomstats", "scipy", "numpy")))
space = NormalDistributions(2, "diagonal")
metric = space.metric
changed = False


def point(variance):
    return np.array([0.0, 0.0, variance, 1.0])


def fisher(variance):
    # The mean square of the derivative of the logarithmic density with respect to the variance.
    x = np.linspace(-12, 12, 20001) * np.sqrt(variance)
    step = variance * 1e-4
    high, low = (scipy.stats.norm(0, np.sqrt(v)).logpdf(x) for v in (variance + step, variance - step))
    return np.trapezoid(((high - low) / (2 * step)) ** 2 * scipy.stats.norm(0, np.sqrt(variance)).pdf(x), x)


np.random.seed(0)
deviation = float(np.std(space.sample(point(4.0), 50000)[:, 0]))
print(f"deviation of samples of a point with 4: {deviation:.3f}")
changed |= abs(deviation - 2) > 0.05
direction = np.array([0.0, 0.0, 1.0, 0.0])
for variance in (0.25, 1.0, 4.0):
    seen = float(metric.squared_norm(direction, point(variance)))
    print(f"variance {variance}: squared norm {seen:.6f}, Fisher information {fisher(variance):.6f}, 2 / variance {2 / variance:.6f}")
    changed |= not np.isclose(seen, 2 / variance) or not np.isclose(fisher(variance), 0.5 / variance**2, rtol=1e-3)
begin, end = point(1.0), point(4.0)
path = metric.geodesic(initial_point=begin, end_point=end)
velocity = ((path(np.array([1e-6]))[0] - begin) / 1e-6)[2]
logarithm = metric.log(end, begin)
places = [float(metric.exp(vector, begin)[2]) for vector in (logarithm, direction * velocity)]
points = path(np.linspace(0, 1, 4001))
length = sum(float(metric.norm(b - a, a)) for a, b in zip(points, points[1:]))
distance = float(metric.dist(begin, end))
print(f"from variance 1 to 4: velocity of the geodesic {velocity:.4f}, log {logarithm[2]:.4f};")
print(f"    exp of log {places[0]:.4f}, exp of the velocity {places[1]:.4f}; dist {distance:.4f}, length of the geodesic {length:.4f}")
changed |= not np.allclose([velocity, logarithm[2]], [np.log(4), np.log(2)], atol=1e-4)
changed |= not np.allclose(places, [4, 16], rtol=1e-3) or not np.isclose(distance, np.sqrt(0.5) * np.log(4))
changed |= not np.isclose(length, 2 * np.sqrt(2), rtol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: velocities are those of deviations")
PYTHON
