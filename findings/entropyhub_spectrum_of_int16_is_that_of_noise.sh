#!/usr/bin/env bash
# EntropyHub's spectral entropy of a sine of the height 1000 in int16 is 0.98, above the 0.93 of noise; that of the same numbers in float64 is 0.25.
#
# Expected: one number for the same values. Seen with EntropyHub 2.0, SciPy 1.17.1 and NumPy 2.4.6 on Linux: SpecEn convolves the signal with itself in the type of the
# samples, and the sums wrap around; int32 fails at the height 30000. An entropy near 1 says that there is no rhythm. The sample entropy of
# the same library is right for all of these types. EEG and ECG recorders give int16. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 EntropyHub==2.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import EntropyHub
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("EntropyHub", "scipy", "numpy")))
normal = np.random.default_rng(0).normal(size=400)
noise = float(EntropyHub.SpecEn(normal)[0])
print(f"noise: {noise:.4f}")
changed = noise < 0.85
for height in (5, 1000, 30000):
    values = np.rint((np.sin(2 * np.pi * np.arange(400) / 20) + normal / 100) * height)
    power = np.abs(np.fft.fft(values, 2 * len(values) + 1)[: len(values) + 1]) ** 2
    share = power / power.sum()
    right = -(share * np.log(share)).sum() / np.log(len(share))
    print(f"sine of {height}: by definition {right:.4f}", end="")
    samples = float(EntropyHub.SampEn(values)[0][-1])
    for dtype in ("float64", "int64", "int32", "int16"):
        signal = values.astype(dtype)
        entropy = float(EntropyHub.SpecEn(signal)[0])
        sample = float(EntropyHub.SampEn(signal)[0][-1])
        print(f", {dtype} {entropy:.4f}", end="")
        wrong = (dtype == "int16" and height >= 1000) or (dtype == "int32" and height == 30000)
        changed |= not (0.8 < entropy < 1 if wrong else np.isclose(entropy, right, rtol=1e-2))
        changed |= not np.isclose(sample, samples)
    print()
if changed:
    sys.exit("the behaviour has changed")
print("as described: the convolution wraps around")
PYTHON
