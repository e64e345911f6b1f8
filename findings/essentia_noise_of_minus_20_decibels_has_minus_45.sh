#!/usr/bin/env bash
# Noise that Essentia adds at a level of -20 dB has a power of -44.8 dB, and at -40 dB one of -84.8 dB: each decibel counts twice.
#
# Expected: noise whose power is the level, which the parameter calls the power level of the noise generator in dB. Seen with essentia 2.1b6.dev1389 and
# NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: NoiseAdder draws numbers from an interval whose half width is 10 to the power of level / 10, a ratio of
# powers that is used as an amplitude; the third of its square is the power. Signals for tests of robustness are 25 to 65 dB cleaner than asked for.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check essentia==2.1b6.dev1389 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON' 2> /dev/null
import importlib.metadata
import sys

import essentia.standard as es
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("essentia", "numpy")))
same = True
for level in (-10, -20, -40, -60):
    noise = es.NoiseAdder(level=level)(np.zeros(1_000_000, np.float32)).astype(np.float64)
    power, peak = 10 * np.log10((noise**2).mean()), np.abs(noise).max()
    print(f"level {level} dB: power {power:.1f} dB, peak {peak:.4g}")
    same &= abs(power - (2 * level - 4.77)) < 0.1 and abs(peak / 10 ** (level / 10) - 1) < 0.01
if not same:
    sys.exit("the behaviour has changed")
print("as described: the power is twice the level in decibels, less 4.8")
PYTHON
