#!/usr/bin/env bash
# nnAudio's VQT at 44100 Hz puts each tone an octave too high, bin 36 for 24, with its defaults; CQT2010v2 is louder by the root of 2.
#
# Expected: the bin and the magnitude of CQT1992v2 in the same package, because VQT with gamma=0 is documented as the constant-Q transform, and the
# classes differ in their algorithms only. Seen with nnAudio 0.3.4, torch 2.14.1, SciPy 1.17.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30: if
# the highest bin is low enough, VQT and CQT2010v2 halve the sampling rate first (earlydownsample=True). VQT then keeps the old rate for its
# filters, and CQT2010v2 does not scale the result. At 22050 Hz with 84 bins nothing is halved, and all classes agree, as they do with
# earlydownsample=False. A model that was trained at one rate reads other notes at another one, with no warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 torch==2.14.1 nnAudio==0.3.4
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import torch
from nnAudio import features

names = ("nnAudio", "torch", "scipy", "numpy")
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
lowest = 32.7


def loudest(kind, rate, octave, **options):
    """Return the loudest bin for a tone some octaves above the lowest bin, and its magnitude."""
    tone = torch.sin(2 * torch.pi * lowest * 2**octave * torch.arange(2 * rate) / rate)[None]
    spectrum = getattr(features, kind)(sr=rate, verbose=False, **options)(tone)
    middle = spectrum[0, :, spectrum.shape[-1] // 2]
    return int(middle.argmax()), float(middle.max())


same = True
for rate, octave in ((44100, 2), (44100, 3), (22050, 2), (22050, 3)):
    number, magnitude = loudest("CQT1992v2", rate, octave)
    print(f"{rate} Hz, octave {octave}: CQT1992v2 bin {number}, {magnitude:.2f}")
    same &= number == 12 * octave
    for kind in ("VQT", "CQT2010v2"):
        for early in (True, False):
            other, loud = loudest(kind, rate, octave, earlydownsample=early)
            print(f"  {kind}, earlydownsample={early}: bin {other}, {loud:.2f}")
            halved = early and rate == 44100
            same &= other == number + 12 * (halved and kind == "VQT")
            same &= abs(loud / magnitude - (2**0.5 if halved and kind == "CQT2010v2" else 1)) < 0.01
if not same:
    sys.exit("the behaviour has changed")
print("as described: tones are an octave too high, or louder, after the early downsampling")
PYTHON
