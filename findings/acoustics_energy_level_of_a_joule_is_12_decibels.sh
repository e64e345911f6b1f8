#!/usr/bin/env bash
# The sound energy level of one joule is 12 dB with acoustics, and the sound power level of one watt is 120 dB; by its formula the first is 120 dB too.
#
# Expected: ten times the decimal logarithm of the energy over one picojoule, as ISO/TR 25417 has it and as the formula in the description of the function
# says. Seen with acoustics 0.2.6, SciPy 1.16.3 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the factor ten is missing, so that the result is in bel and
# twice the energy adds 0.3 in place of 3 dB. The levels of power, intensity and exposure beside it have the factor.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check acoustics==0.2.6 scipy==1.16.3 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from acoustics.descriptors import sound_energy_level, sound_power_level

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("acoustics", "scipy", "numpy")))
same = True
for value, expected in ((1.0, 12.0), (2.0, 12.30103), (0.001, 9.0)):
    energy, power = float(sound_energy_level(value)), float(sound_power_level(value))
    right = 10 * np.log10(value / 1e-12)
    print(f"{value:g} J: {energy:.2f} dB, {value:g} W: {power:.2f} dB, by the formula {right:.2f} dB for both")
    same &= bool(np.isclose(energy, expected) and np.isclose(power, right) and np.isclose(10 * energy, right))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the level of the energy is a tenth of the right one")
PYTHON
