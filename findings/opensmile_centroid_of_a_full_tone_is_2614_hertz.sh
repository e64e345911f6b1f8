#!/usr/bin/env bash
# The spectral centroid of a tone of 1,000 Hz whose peak is 1 is 2,614 Hz with openSMILE, and 1,000 Hz if its peak is 0.999.
#
# Expected: features that do not depend on a thousandth of the level, as sounds are often normalised to a peak of 1. Seen with opensmile 2.6.0,
# audinterface 1.4.0 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: samples are multiplied by 32,768 and cast to 16-bit integers, where a sample of 1
# becomes -32,768, a click at each peak. The loudness of a voice-like sound rises from 2.6 to 4.7 and its Hammarberg index falls from 52 to 21; the
# level stays as it is, so that nothing shows.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check opensmile==2.6.0 audinterface==1.4.0 numpy==2.3.5 pandas==3.1.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import opensmile

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("opensmile", "audinterface", "numpy")))
rate = 16_000
t = np.arange(3 * rate) / rate
tone = np.sin(2 * np.pi * 1000 * t)
voice = sum(np.sin(2 * np.pi * 200 * k * t) / k for k in range(1, 9))
voice /= np.abs(voice).max()
frames = opensmile.Smile(opensmile.FeatureSet.ComParE_2016, opensmile.FeatureLevel.LowLevelDescriptors)
whole = opensmile.Smile(opensmile.FeatureSet.eGeMAPSv02, opensmile.FeatureLevel.Functionals)
seen = {}
for peak in (0.999, 1.0):
    found = frames.process_signal((peak * tone).astype(np.float32), rate)
    of_voice = whole.process_signal((peak * voice).astype(np.float32), rate).iloc[0]
    names = ("loudness_sma3_amean", "hammarbergIndexV_sma3nz_amean", "equivalentSoundLevel_dBp")
    seen[peak] = [float(found["pcm_fftMag_spectralCentroid_sma"].median()), *(float(of_voice[name]) for name in names)]
    centroid, loudness, index, level = seen[peak]
    print(f"peak {peak}: centroid {centroid:.0f} Hz; voice: loudness {loudness:.2f}, Hammarberg index {index:.1f}, level {level:.2f} dB")
described = {0.999: [1000, 2.635, 51.8, -5.571], 1.0: [2614, 4.684, 21.1, -5.562]}
if not all(np.allclose(seen[peak], described[peak], rtol=0.02) for peak in seen):
    sys.exit("the behaviour has changed")
print("as described: samples of 1 become -1")
PYTHON
