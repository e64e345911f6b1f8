#!/usr/bin/env bash
# The Wiener entropy of NeuroKit2 is that of the first window of a signal, however long the signal is, and of its squared power.
#
# Expected: a number for the whole signal, and for white noise 0.56, exp(-0.5772), the geometric mean of its
# powers divided by the arithmetic mean, because the documentation calls the measure spectral flatness and the quotient of the two
# means of the power spectrum. Seen with NeuroKit2 0.3.0, SciPy 1.17.1 and NumPy 2.4.6 on Linux: the first
# column of the spectrogram is taken and the others are dropped, and the spectrogram, which holds powers, is
# squared: 0.17 for noise. Ten minutes of a tone and ten of noise have the same entropy, to the last bit, as the tone without
# the noise, and exchanged the one of the noise. A change in a recording is not seen. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 pandas==2.3.3 matplotlib==3.10.8 neurokit2==0.3.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import neurokit2
import numpy as np
import scipy.signal

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("neurokit2", "scipy", "numpy")))
rate, window = 100, 5.0
count = 10 * 60 * rate
noise = np.random.default_rng(0).normal(size=count)
tone = np.sin(2 * np.pi * 10 * np.arange(count) / rate)


def flatness(signal):
    _, _, power = scipy.signal.spectrogram(signal, rate, window="hann", nperseg=int(window * rate), detrend=False)
    power = power[1:-1]
    return np.exp(np.log(np.maximum(power, 1e-30)).mean(0)) / power.mean(0)


signals = {
    "noise": noise,
    "tone": tone,
    "tone, then noise": np.concatenate([tone, noise]),
    "noise, then tone": np.concatenate([noise, tone]),
}
seen = {}
for name, signal in signals.items():
    seen[name] = float(neurokit2.entropy_wiener(signal, sampling_rate=rate, window=window)[0])
    right = flatness(signal)
    print(f"{name}: entropy_wiener {seen[name]:.6g}; flatness of the {len(right)} windows: mean {right.mean():.6f}")
changed = seen["tone"] != seen["tone, then noise"] or seen["noise"] != seen["noise, then tone"]
changed |= abs(flatness(noise).mean() - np.exp(-np.euler_gamma)) > 0.03
# The flatness of squared powers of noise is the square of exp(-0.5772) over the mean square of the powers, which is 2.
changed |= abs(seen["noise"] - np.exp(-2 * np.euler_gamma) / 2) > 0.05 or seen["tone"] > 1e-6
if changed:
    sys.exit("the behaviour has changed")
print("as described: one window counts")
PYTHON
