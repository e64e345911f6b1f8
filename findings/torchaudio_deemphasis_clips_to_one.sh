#!/usr/bin/env bash
# torchaudio's deemphasis does not invert preemphasis for samples above 1: the samples 1, 2, 4, 2 and 1 return as five ones.
#
# Expected: the samples themselves, because both functions are linear, and deemphasis is documented as the inverse of preemphasis. Seen with torchaudio
# 2.11.1, torch 2.14.1 and SciPy 1.17.1 (CPU, x86-64 Linux) on 2026-11-29: deemphasis calls lfilter, which clips to -1 and 1 by default, and
# has no argument to turn this off; Deemphasis of the transforms has the same result. preemphasis does not clip. The gradient of a clipped
# sample is 0. A constant signal of 0.9 is clipped from its second sample on, since the filter multiplies it by 33. No warning is
# given. Samples in the range of int16, and outputs of networks before their scaling, become a square wave.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchaudio==2.11.1 scipy==1.17.1
cat > "$work/filter.py" <<'PYTHON'
import importlib.metadata
import sys

import scipy.signal
import torch
from torchaudio.functional import deemphasis, preemphasis
from torchaudio.transforms import Deemphasis

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchaudio", "torch", "scipy")))
signals = {
    "quiet": torch.tensor([0.125, 0.25, 0.5, 0.25, 0.125]),
    "loud": torch.tensor([1.0, 2, 4, 2, 1]),
    "int16": torch.tensor([-3000.0, 12000, 500, -200]),
}
changed = False
for name, signal in signals.items():
    filtered = preemphasis(signal[None])
    seen, other = deemphasis(filtered)[0], Deemphasis()(filtered)[0]
    expected = torch.from_numpy(scipy.signal.lfilter([1], [1, -0.97], filtered[0].double().numpy())).float()
    print(f"{name}: {signal.tolist()} returns as {seen.tolist()}, from SciPy as {expected.round(decimals=3).tolist()}")
    changed |= not torch.equal(seen, other) or not torch.allclose(expected, signal, rtol=1e-4)
    changed |= not torch.allclose(seen, signal.clamp(-1, 1), atol=1e-5)
constant = torch.full((1, 6), 0.9, requires_grad=True)
result = deemphasis(constant)
result.sum().backward()
print(f"constant 0.9: {result[0].tolist()}, gradient of the sum {constant.grad[0].tolist()}")
changed |= result[0, 1:].tolist() != [1.0] * 5 or constant.grad[0, 1:].tolist() != [0.0] * 5
if changed:
    sys.exit("the behaviour has changed")
print("as described: deemphasis clips to -1 and 1")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/filter.py"
