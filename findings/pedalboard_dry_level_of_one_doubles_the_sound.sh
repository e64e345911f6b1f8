#!/usr/bin/env bash
# A reverb of Pedalboard with no wet and all of the dry sound returns twice the sound: each dry level counts double.
#
# Expected: the sound itself for wet_level=0 and dry_level=1, and half of it for dry_level=0.5, as mix=0 of the other effects returns it. Seen with
# pedalboard 0.9.26 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the dry sound is multiplied by twice the level, which the description does not say; the
# default of 0.4 gives 0.8. Sounds that are augmented with some reverb at dry_level=1 are 6 dB louder than the others, and clip in a file of integers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pedalboard==0.9.26 numpy==2.3.5
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from pedalboard import Chorus, Reverb

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pedalboard", "numpy")))
rate = 16_000
sound = (0.25 * np.sin(2 * np.pi * 1000 * np.arange(2 * rate) / rate)).astype(np.float32)


def gain(effect):
    return float(np.std(effect(sound, rate)[rate:]) / np.std(sound[rate:]))


seen = {level: gain(Reverb(wet_level=0.0, dry_level=level)) for level in (0.0, 0.25, 0.4, 0.5, 1.0)}
for level, times in seen.items():
    print(f"dry level {level}: {times:.3f} times the sound")
chorus = gain(Chorus(mix=0.0))
print(f"chorus without an effect: {chorus:.3f}")
if not (np.allclose(list(seen.values()), [2 * level for level in seen], atol=1e-3) and abs(chorus - 1) < 1e-3):
    sys.exit("the behaviour has changed")
print("as described: the dry sound is multiplied by twice the level")
PYTHON
