#!/usr/bin/env bash
# PyTorch exports the imaginary part of a conjugated tensor by DLPack with the opposite sign.
#
# Expected: the values that the tensor prints, or an error, as tensor.numpy() raises for a tensor with the negative bit and __dlpack__ for one
# with the conjugate bit. Seen with torch 2.13.0 and NumPy 2.4.6 on a CPU: for z = 1 + 2j, z.conj().imag is -2, and np.from_dlpack and
# torch.from_dlpack return 2. torch.fft.ifft of a real signal also has the conjugate bit, so its imaginary part arrives with the wrong
# sign. The older torch.utils.dlpack.to_dlpack exports conjugated tensors too, without conjugation. resolve_neg() before the
# export gives the right values.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import torch
from torch.utils import dlpack


def error(function):
    try:
        return str(function().tolist())
    except (BufferError, RuntimeError) as error:
        return type(error).__name__


z = torch.tensor([1 + 2j, 3 - 4j])
view = z.conj().imag
signal = [0.0, 0.0, 1.0]
spectrum = torch.fft.ifft(torch.tensor(signal))
results = {
    "z.conj().imag": view.tolist(),
    "np.from_dlpack": np.from_dlpack(view).tolist(),
    "torch.from_dlpack": torch.from_dlpack(view).tolist(),
    "np.from_dlpack of resolve_neg()": np.from_dlpack(view.resolve_neg()).tolist(),
    "numpy()": error(view.numpy),
    "np.from_dlpack of z.conj()": error(lambda: np.from_dlpack(z.conj())),
    "to_dlpack of z.conj()": dlpack.from_dlpack(dlpack.to_dlpack(z.conj())).tolist(),
    "torch.fft.ifft, imag": np.round(spectrum.imag.tolist(), 3).tolist(),
    "torch.fft.ifft, imag, np.from_dlpack": np.round(np.from_dlpack(spectrum.imag), 3).tolist(),
    "np.fft.ifft, imag": np.round(np.fft.ifft(signal).imag, 3).tolist(),
}
for name, result in results.items():
    print(f"{name}: {result}")
seen = list(results.values())
exact = np.array([0.0, -0.289, 0.289])
if (
    seen[:7] != [[-2.0, 4.0], [2.0, -4.0], [2.0, -4.0], [-2.0, 4.0], "RuntimeError", "BufferError", [1 + 2j, 3 - 4j]]
    or not all(np.allclose(result, expected, atol=1e-3) for result, expected in zip(seen[7:], (exact, -exact, exact)))
):
    sys.exit("the behaviour has changed")
print("as described: the exported values have the opposite sign")
PYTHON
