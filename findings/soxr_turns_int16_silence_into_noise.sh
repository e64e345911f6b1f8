#!/usr/bin/env bash
# soxr resamples int16 silence to noise: a fifth of the samples of a resampled array of zeros are -1 or 1, at equal rates too.
#
# Expected: zeros from zeros, as from int32 and float arrays, and the input for equal rates. Seen with soxr 1.1.0 and NumPy 2.4.6 (x86-64 Linux) on
# 2026-11-30: dither is added to each int16 result. The docstring of resample does not mention dither, and it has no argument for it. A constant of 100
# becomes 99, 100 and 101. The noise is the same in each call, so it adds up where recordings are summed or averaged. No warning is
# given. Padding of zeros, masked parts and checks for silence (all zeros, a voice detector, the energy of a frame) change with the sample type.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 soxr==1.1.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import soxr

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("soxr", "numpy")))
same = True
for value in (0, 100):
    for kind in (np.int16, np.int32, np.float32):
        for rate in (44100, 48000):
            result = soxr.resample(np.full(48000, value, kind), 48000, rate)[2000:-2000]
            offsets = np.unique(np.round(result).astype(int) - value)
            share = float(np.mean(np.abs(result - value) > 0.5))
            print(f"{np.dtype(kind)} of {value}, 48000 to {rate} Hz: offsets {offsets.tolist()}, {share:.0%} of the samples")
            same &= offsets.tolist() == ([-1, 0, 1] if kind is np.int16 else [0])
            same &= 0.1 < share < 0.35 if kind is np.int16 else share == 0
first, second = (soxr.resample(np.zeros(48000, np.int16), 48000, 44100) for _ in range(2))
print(f"two calls return the same noise: {np.array_equal(first, second)}")
same &= np.array_equal(first, second)
if not same:
    sys.exit("the behaviour has changed")
print("as described: noise is added to int16 samples only")
PYTHON
