#!/usr/bin/env bash
# Pedalboard's bit crusher leaves 513 levels of a sound at a depth of 8 bits, which have 256, and five levels at a depth of one bit.
#
# Expected: at most 2 to the power of the depth, the number of values that samples of so many bits have; the description speaks of the number of unique
# values. Seen with pedalboard 0.9.26 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: Bitcrush rounds to multiples of 2 to the power of minus the depth
# between -1 and 1, one bit more and one level. Its noise is 6 dB below the noise of 8-bit samples, and sounds that are crushed to train models for
# old recordings or telephones are cleaner than these.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pedalboard==0.9.26 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pedalboard import Bitcrush

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pedalboard", "numpy")))
ramp = np.linspace(-1, 1, 200_001, dtype=np.float32)
same = True
for depth in (1, 2, 4, 8):
    levels = np.unique(Bitcrush(bit_depth=depth)(ramp, 16_000))
    print(f"{depth} bits: {len(levels)} levels, {levels[0]:g} to {levels[-1]:g} in steps of {np.diff(levels).max():g}")
    same &= len(levels) == 2 ** (depth + 1) + 1 and bool(np.isclose(np.diff(levels), 2.0**-depth).all())
if not same:
    sys.exit("the behaviour has changed")
print("as described: there are twice as many levels and one")
PYTHON
