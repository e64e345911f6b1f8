#!/usr/bin/env bash
# keras.ops.istft with window=None returns a signal that is two or four times too large; with a Hann window it inverts stft.
#
# Expected: the signal for every window, None included, which both functions document as no window: scipy.signal.istft returns it for a
# window of ones. Seen with keras 3.15.1, torch 2.13.0, jax 0.10.2 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: frames that overlap are
# added, and the sum is divided by that of the squared windows only if a window is given. The factor is 2 for a stride of half of the length and 4
# for a quarter. With fft_length twice the sequence_length, JAX returns 4 times the signal and torch 2 times. No warning is
# given. Sound that a network changes in the frequency domain is too loud, and clips when it is stored.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 jax==0.10.2 scipy==1.17.1 keras==3.15.1
cat > "$work/istft.py" <<'PYTHON'
import importlib.metadata
import sys

import keras
import numpy as np
import scipy.signal

name = keras.backend.backend()
versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("keras", "torch", "jax", "scipy"))
print(f"back end {name} ({versions})")
signal = np.random.default_rng(1).uniform(0.5, 1, 64).astype(np.float32)
changed = False
for length, stride, fft, factor in ((8, 4, 8, 2), (8, 2, 8, 4), (8, 4, 16, 2 if name == "torch" else 4)):
    for window in ("hann", None):
        arguments = {"sequence_length": length, "sequence_stride": stride, "fft_length": fft, "window": window}
        frames = keras.ops.stft(signal[None], **arguments)
        result = keras.ops.convert_to_numpy(keras.ops.istft(frames, length=64, **arguments))[0]
        ratio = (result / signal)[16:48]
        print(f"length {length}, stride {stride}, fft_length {fft}, window {window}: the signal times {ratio.min():.3f} to {ratio.max():.3f}")
        changed |= not np.allclose(ratio, 1 if window else factor, atol=1e-3)
    settings = {"window": "boxcar", "nperseg": length, "noverlap": length - stride, "nfft": fft}
    other = scipy.signal.istft(scipy.signal.stft(signal, **settings)[2], **settings)[1]
    changed |= not np.allclose(other[:64], signal, atol=1e-5)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the signal is multiplied by the overlap")
PYTHON
for backend in jax torch; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/istft.py"
done
