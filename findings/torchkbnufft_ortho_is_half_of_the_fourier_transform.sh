#!/usr/bin/env bash
# torchkbnufft with norm="ortho" returns half of the orthonormal Fourier transform of an image, and its adjoint a quarter of the image.
#
# Expected: on the frequencies of the FFT, the numbers of torch.fft.fftn with norm="ortho", so that the adjoint of the transform is the
# image, as SigPy's nufft and nufft_adjoint return. Seen with torchkbnufft 1.5.2, torch 2.13.0, sigpy 0.1.27 and NumPy 2.4.6 (CPU, x86-64
# Linux) on 2026-11-30: the factor is one over the root of the size of the oversampled grid, which is twice the image in each dimension by
# default. The factor is 0.71 in one dimension, 0.5 in two and 0.35 in three, and it depends on grid_size, a parameter for the accuracy.
# Without norm, the numbers are those of the FFT. No warning is given. A reconstruction that alternates between this operator and an
# orthonormal one weights the data too low, by 4 in two dimensions and 8 in three.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 torch==2.13.0 torchkbnufft==1.5.2 sigpy==0.1.27
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import sigpy
import torch
import torchkbnufft

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchkbnufft", "torch", "sigpy", "numpy")))
torch.manual_seed(0)
changed = False
for size, grid in (((16,), (32,)), ((8, 8), (16, 16)), ((8, 8), (12, 12)), ((6, 6, 6), (12, 12, 12))):
    image = torch.randn(1, 1, *size, dtype=torch.complex128)
    axes = tuple(range(2, 2 + len(size)))
    steps = [np.arange(float(n)) - n // 2 for n in size]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*steps, indexing="ij")])
    omega = torch.tensor(points * 2 * np.pi / np.array(size)[:, None])
    forward = torchkbnufft.KbNufft(im_size=size, grid_size=grid).to(torch.complex128)
    adjoint = torchkbnufft.KbNufftAdjoint(im_size=size, grid_size=grid).to(torch.complex128)

    def ratio(result, wanted):
        """Return the factor between two arrays and the largest difference without the factor."""
        factor = float((wanted.conj() * result).sum().real / (wanted.abs() ** 2).sum())
        return factor, float((result - factor * wanted).abs().max())

    shifted = torch.fft.ifftshift(image, dim=axes)
    fourier = {norm: torch.fft.fftshift(torch.fft.fftn(shifted, dim=axes, norm=norm), dim=axes).flatten(2) for norm in (None, "ortho")}
    plain = ratio(forward(image, omega), fourier[None])
    ortho = ratio(forward(image, omega, norm="ortho"), fourier["ortho"])
    back = ratio(adjoint(forward(image, omega, norm="ortho"), omega, norm="ortho"), image)
    other = sigpy.nufft_adjoint(sigpy.nufft(image[0, 0].numpy(), points.T), points.T, oshape=size)
    sigpy_back = ratio(torch.tensor(other)[None, None], image)
    print(f"size {size}, grid {grid}: without norm {plain[0]:.3f} of the FFT, ortho {ortho[0]:.3f}", end="")
    print(f", adjoint of it {back[0]:.3f} of the image, SigPy's {sigpy_back[0]:.3f}")
    factor = np.sqrt(np.prod(size) / np.prod(grid))
    changed |= abs(plain[0] - 1) > 1e-2 or abs(sigpy_back[0] - 1) > 0.03 or max(plain[1], ortho[1], back[1]) > 0.1
    changed |= abs(ortho[0] - factor) > 1e-2 or abs(back[0] - factor**2) > 1e-2
if changed:
    sys.exit("the behaviour has changed")
print("as described: the transform is not orthonormal")
PYTHON
