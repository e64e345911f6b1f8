#!/usr/bin/env bash
# librosa's spectral centroid of a spectrogram of integers is 0 Hz, unless one frequency has all of the energy.
#
# Expected: the centroid of the same spectrogram as floats, or an error. Seen with librosa 0.11.0, SciPy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on
# 2026-11-29: util.normalize divides in float64 and stores the shares, which are below 1, in an array of the integer type, so each share is 0.
# The bandwidth is 0 too, and normalize of int16 samples keeps only the peaks, as 1. Spectral flatness, roll-off and MFCC of the
# same array are right. No warning is given. A quantized spectrogram, as uint8 images of spectrograms are, has a feature of zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 librosa==0.11.0
cat > "$work/centroid.py" <<'PYTHON'
import importlib.metadata
import sys

import librosa
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("librosa", "scipy", "numpy")))
# Five frequencies from 0 to 11025 Hz, four frames; the last frame has a single frequency.
spectrogram = np.array([[1, 9, 2, 0], [3, 9, 50, 0], [7, 9, 200, 40], [3, 9, 50, 0], [1, 9, 2, 0]])
functions = {
    "centroid": lambda x: librosa.feature.spectral_centroid(S=x),
    "bandwidth": lambda x: librosa.feature.spectral_bandwidth(S=x),
    "roll-off": lambda x: librosa.feature.spectral_rolloff(S=x),
    "flatness": lambda x: librosa.feature.spectral_flatness(S=x),
}
changed = False
for name, function in functions.items():
    correct = function(spectrogram.astype(np.float64))[0]
    print(f"{name} of float64: {correct.round(4).tolist()}")
    for dtype in (np.uint8, np.int16, np.int32):
        seen = function(spectrogram.astype(dtype))[0]
        print(f"{name} of {np.dtype(dtype)}: {seen.round(4).tolist()}")
        if name in ("centroid", "bandwidth"):
            changed |= bool(seen[:3].any()) or not correct[:3].all() or seen[3] != correct[3]
        else:
            changed |= not np.allclose(seen, correct)
samples = np.array([100, -3000, 12000, 32000, -32000], np.int16)
scaled = librosa.util.normalize(samples).tolist()
print(f"normalize of int16 {samples.tolist()}: {scaled}, of float64 {librosa.util.normalize(samples.astype(np.float64)).tolist()}")
if changed or scaled != [0, 0, 0, 1, -1]:
    sys.exit("the behaviour has changed")
print("as described: the centroid is 0 Hz")
PYTHON
HOME="$work" "$work/venv/bin/python" "$work/centroid.py"
