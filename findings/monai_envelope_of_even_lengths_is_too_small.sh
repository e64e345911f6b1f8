#!/usr/bin/env bash
# HilbertTransform of MONAI removes the highest frequency of an even length: the envelope of 1, -1, 1, -1 is zero.
#
# Expected: an analytic signal whose real part is the input, as scipy.signal.hilbert returns for each length, and an envelope of 1. Seen
# with monai 1.6.1, torch 2.14.1, scipy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: MONAI multiplies the term of the Nyquist
# frequency by 0 instead of 1, because it counts the frequency as negative. The real part of the transform of a unit impulse of length 8
# is 0.875 at the impulse, with a ripple of 0.125 elsewhere. Odd lengths agree with SciPy. DetectEnvelope, its transform for ultrasound
# images, is affected. No warning is given. An image that is cropped by one row has another envelope.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 torch==2.14.1 monai==1.6.1
cat > "$work/envelope.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.signal
import torch
from monai.networks.layers import HilbertTransform
from monai.transforms import DetectEnvelope

np.set_printoptions(linewidth=200)
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "scipy", "numpy")))
changed = False
for length in (8, 9, 12):
    alternating = np.cos(np.pi * np.arange(length)).round().astype(np.float32)
    impulse = np.eye(length, dtype=np.float32)[3]
    for name, x in (("alternating", alternating), ("impulse", impulse)):
        signal = HilbertTransform(axis=2)(torch.from_numpy(x)[None, None])[0, 0].numpy()
        envelope = np.asarray(DetectEnvelope()(torch.from_numpy(x)[None]))[0]
        wanted = scipy.signal.hilbert(x.astype(np.float64))
        print(f"{name} of length {length}: real part {abs(signal.real).round(3)}, envelope {envelope.round(3)}")
        nyquist = np.sum(x * alternating) / length * alternating if length % 2 == 0 else 0
        changed |= not np.allclose(wanted.real, x, atol=1e-6) or not np.allclose(signal, wanted - nyquist, atol=1e-5)
        changed |= not np.allclose(envelope, abs(wanted - nyquist), atol=1e-5)
        changed |= length == 8 and name == "alternating" and bool(abs(envelope).max() > 1e-5)
if changed:
    sys.exit("the behaviour has changed")
print("as described: even lengths lose the highest frequency")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/envelope.py"
