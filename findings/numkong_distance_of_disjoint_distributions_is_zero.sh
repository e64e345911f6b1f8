#!/usr/bin/env bash
# NumKong's Jensen-Shannon distance of (1, 0) and (0, 1) is 0 with AVX-512, and 0.83 without.
#
# Expected: the square root of log(2), the largest distance that exists. The documentation calls the function equivalent to
# scipy.spatial.distance.jensenshannon, which returns it. Seen with numkong 7.8.6, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux with
# AVX-512) on 2026-11-29, for float64, float32 and float16: the kernel leaves out each element where one of the two numbers is 0.
# Distributions with no common element are equal, and (1, 0) is 0.21 from (0.5, 0.5) in place of 0.46. Two histograms of 1000 bins, a
# tenth of them filled, are 0.1 apart in place of 0.7. The kernels for older processors are right, so that the same data has other
# neighbours on another machine. A smallest number of 1e-12 in place of 0 is enough in float64. No warning is given. kullbackleibler is
# not affected.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 numkong==7.8.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numkong
import numpy as np
from scipy.spatial import distance

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numkong", "scipy", "numpy")))
generator = np.random.default_rng(0)
histograms = generator.random((2, 1000)) * (generator.random((2, 1000)) < 0.1)
pairs = {
    "no common element": np.eye(2),
    "no common element, 1e-12 in place of 0": np.array([[1, 1e-12], [1e-12, 1]]),
    "one common element": np.array([[1, 0], [0.5, 0.5]]),
    "all elements common": np.array([[0.5, 0.5], [0.25, 0.75]]),
    "histograms": histograms / histograms.sum(axis=1, keepdims=True),
}


def distances(pair):
    return [float(numkong.jensenshannon(*pair.astype(kind))) for kind in (np.float64, np.float32, np.float16)]


wide = numkong.get_capabilities()["skylake"]
expected = {name: distance.jensenshannon(*pair) for name, pair in pairs.items()}
first = {name: distances(pair) for name, pair in pairs.items()}
numkong.disable_capability("skylake")
changed = not wide
for name, pair in pairs.items():
    both = (pair > 0).all(axis=0)
    middle = pair.mean(axis=0)[both]
    without = np.sqrt(np.sum(pair[:, both] * np.log(pair[:, both] / middle)).clip(0) / 2) if "1e-12" not in name else expected[name]
    second = distances(pair)
    print(f"{name}: SciPy {expected[name]:.4f}, AVX-512 {np.round(first[name], 4).tolist()}, older kernels {np.round(second, 4).tolist()}")
    kinds = 1 if "1e-12" in name else 3
    changed |= not np.allclose(first[name][:kinds], without, atol=1e-3) or not np.allclose(second[:kinds], expected[name], atol=1e-3)
if not wide:
    sys.exit("this processor has no AVX-512")
if changed:
    sys.exit("the behaviour has changed")
print("as described: AVX-512 leaves out elements where one number is 0")
PYTHON
