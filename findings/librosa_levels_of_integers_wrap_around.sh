#!/usr/bin/env bash
# librosa's amplitude_to_db squares integers in their own type: the int16 amplitude 256 has -34.8 dB in place of 48.2 dB.
#
# Expected: the levels of the same amplitudes as floats, or an error, as librosa raises for integer samples in stft. Seen with librosa 0.11.0, SciPy
# 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29: the square is stored in the array of the amplitudes, so int16 is right up to 181 and uint8
# up to 15. With ref=np.max, levels are above 0 dB: a uint8 spectrogram with the maximum 255 has 23.5 dB at 15. The
# docstring names power_to_db of the square as the equivalent, and power_to_db of integers is right. No warning is given. The order of levels is lost.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 librosa==0.11.0
cat > "$work/levels.py" <<'PYTHON'
import importlib.metadata
import sys

import librosa
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("librosa", "scipy", "numpy")))
cases = {
    np.float64: ([1, 100, 181, 182, 256, 1000], [0, 40, 45.1536, 45.2014, 48.1648, 60]),
    np.int32: ([1, 100, 181, 182, 256, 1000], [0, 40, 45.1536, 45.2014, 48.1648, 60]),
    np.int16: ([1, 100, 181, 182, 256, 1000], [0, 40, 45.1536, -34.8464, -34.8464, 42.2943]),
    np.uint8: ([1, 15, 16, 100, 240, 255], [0, 23.5218, -56.4782, 12.0412, -56.4782, 0]),
}
changed = False
for dtype, (amplitudes, expected) in cases.items():
    amplitudes = np.array(amplitudes, dtype)
    levels = librosa.amplitude_to_db(amplitudes)
    relative = librosa.amplitude_to_db(amplitudes, ref=np.max)
    power = librosa.power_to_db(amplitudes)
    print(f"{np.dtype(dtype)} {amplitudes.tolist()}:")
    print(f"    amplitude_to_db {levels.round(1).tolist()}, relative to the maximum {relative.round(1).tolist()}")
    changed |= not np.allclose(levels, expected, atol=1e-3)
    changed |= not np.allclose(power, 10 * np.log10(amplitudes.astype(np.float64)), atol=1e-3)
    changed |= (relative.max() > 1) != (dtype in (np.int16, np.uint8))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the level of a larger amplitude is lower")
PYTHON
HOME="$work" "$work/venv/bin/python" "$work/levels.py"
