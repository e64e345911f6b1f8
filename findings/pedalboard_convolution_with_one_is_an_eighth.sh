#!/usr/bin/env bash
# A convolution with the impulse response [1] makes a sound eight times quieter with Pedalboard, and so do [0.5] and [2]: the level of a response is lost.
#
# Expected: the sound itself, and half or twice the sound, as a convolution with an array is defined and scipy.signal.convolve computes it. Seen with
# pedalboard 0.9.26, SciPy 1.17.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: Convolution scales each response to an energy of 1/64, which its
# description does not say. Measured rooms and loudspeakers lose their gain, and responses of different positions in a room their relation; the
# difference of a sound and its convolution with one impulse, which should be silent, is 7/8 of the sound.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pedalboard==0.9.26 scipy==1.17.1 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pedalboard import Convolution
from scipy.signal import convolve

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pedalboard", "scipy", "numpy")))
rate = 16_000
sound = np.zeros(2000, np.float32)
sound[:2] = 1, -0.5
same = True
for response in ([1.0], [0.5], [2.0], [0.0, 1.0], [1.0, 1.0]):
    kernel = np.array(response, np.float32)
    seen = Convolution(kernel, mix=1.0, sample_rate=rate)(sound, rate)
    right = convolve(sound, kernel)[: len(sound)]
    factor = 1 / (8 * np.sqrt((kernel**2).sum()))
    print(f"{response}: {np.round(seen[:3], 4)}, by SciPy {np.round(right[:3], 4)}")
    same &= bool(np.allclose(seen, factor * right, atol=1e-4))
if not same:
    sys.exit("the behaviour has changed")
print("as described: responses are scaled to one energy")
PYTHON
