#!/usr/bin/env bash
# A tone of 220 Hz, the note A, is A sharp in pyAudioAnalysis's chromagram, and its spectrogram has the peak at 230 Hz: all frequencies are a bin too high.
#
# Expected: 220 Hz, which is a multiple of the distance of 10 Hz between bins, and the note A, as for 440 Hz. Seen with pyAudioAnalysis 0.3.14,
# NumPy 2.3.5 and SciPy 1.17.1 (x86-64 Linux) on 2026-12-01: the first bin, which holds the mean of a frame, has the frequency of the second one, and so
# on. Windows of 50 ms shift by 20 Hz, a semitone at 340 Hz and more below, and the spectral centroid in the features by as much.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.3.5 scipy==1.17.1 matplotlib==3.11.2 tqdm==4.70.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps pyAudioAnalysis==0.3.14
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pyAudioAnalysis import ShortTermFeatures

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyAudioAnalysis", "numpy", "scipy")))
rate, window = 16_000, 1600
described = {220: ("A#", 230), 440: ("A", 450), 1000: ("B", 1010), 2000: ("B", 2010)}
same = True
for frequency, (note, peak) in described.items():
    tone = np.sin(2 * np.pi * frequency * np.arange(rate) / rate)
    chroma, _, notes = ShortTermFeatures.chromagram(tone, rate, window, window)[:3]
    power, _, bins = ShortTermFeatures.spectrogram(tone, rate, window, window)[:3]
    seen = notes[int(np.argmax(np.asarray(chroma).mean(0)))], float(bins[int(np.argmax(np.asarray(power).mean(0)))])
    right = np.fft.rfftfreq(window, 1 / rate)[np.argmax(np.abs(np.fft.rfft(tone[:window])))]
    print(f"{frequency} Hz: note {seen[0]}, peak {seen[1]:g} Hz, by NumPy {right:g} Hz")
    same &= seen == (note, peak) and right == frequency
if not same:
    sys.exit("the behaviour has changed")
print("as described: frequencies are one bin too high")
PYTHON
