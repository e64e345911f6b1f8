#!/usr/bin/env bash
# spectrum's Yule-Walker coefficients of an int16 sound are -3.97 and 4.24 in place of -1.20 and 0.83, and its power is -26 in place of 8.9e7.
#
# Expected: the numbers of the same signal in float64: a power is not negative, and a Yule-Walker model is stable. Seen with spectrum 0.10.0, SciPy 1.17.1 and
# NumPy 2.4.6 on Linux: CORRELATION multiplies and sums in the type of the samples, and products wrap around. aryule uses it, so that its coefficients
# are those of a growing signal, and the variance of the noise is a hundred-thousandth. arburg is right. 16-bit files of sound, which SciPy reads
# as int16, and counts of recorders have such types. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 spectrum==0.10.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import io
import sys

import numpy as np
import scipy.io.wavfile
import scipy.linalg
import scipy.signal
import spectrum

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("spectrum", "scipy", "numpy")))
noise = np.random.default_rng(0).normal(size=600) * 4000
file = io.BytesIO()
scipy.io.wavfile.write(file, 8000, scipy.signal.lfilter([1], [1, -1.2, 0.8], noise).clip(-32768, 32767).astype(np.int16))
_, sound = scipy.io.wavfile.read(file)
exact = sound.astype(float)
lags = np.array([exact[: len(exact) - lag] @ exact[lag:] / len(exact) for lag in range(3)])
coefficients = -scipy.linalg.solve_toeplitz(lags[:2], lags[1:])
print(f"by definition: power {lags[0]:.0f}, coefficients {coefficients.round(4).tolist()}")
results = {}
for name, signal in (("int16", sound), ("float64", exact)):
    power = float(spectrum.CORRELATION(signal, maxlags=2)[0])
    model, variance, _ = spectrum.aryule(signal, 2)
    burg = np.real(spectrum.arburg(signal, 2)[0])
    pole = float(np.abs(np.roots([1, *np.real(model)])).max())
    results[name] = power, model, float(variance)
    print(f"{name}: power {power:.0f}, aryule {np.round(model, 4).tolist()} with the variance {variance:.0f} and a pole at {pole:.2f}", end=", ")
    print(f"arburg {burg.round(4).tolist()}")
    if np.abs(burg - coefficients).max() > 0.05 or (pole > 1) != (name == "int16"):
        sys.exit("the behaviour has changed")
right, wrong = results["float64"], results["int16"]
changed = not np.isclose(right[0], lags[0]) or np.abs(right[1] - coefficients).max() > 0.02 or right[2] < 1e7
changed |= sound.dtype != np.int16 or abs(wrong[0]) > 33000 or np.abs(wrong[1] - coefficients).max() < 0.2 or abs(wrong[2]) > 1e6
if changed:
    sys.exit("the behaviour has changed")
print("as described: products of samples wrap around")
PYTHON
