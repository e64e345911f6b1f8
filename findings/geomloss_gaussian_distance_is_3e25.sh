#!/usr/bin/env bash
# GeomLoss' Gaussian loss of two point clouds is 0.04 near the origin, and 3e25 if both are shifted by 1000. The largest value is 1.
#
# Expected: the same value, because only differences of points count, with an error in proportion to the rounding of the points. Seen with
# geomloss 0.3.1, torch 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, in float32 with the default blur of 0.05 and
# backend="tensorized", which is the choice for small clouds: squared distances are computed from squared norms, are below 0 after
# rounding, and the exponential of the kernel is above 1. A shift of 300 is enough for a loss of 7. The gradients are as large. The
# Laplacian loss, whose distances are clipped at 0, becomes four times too large. "energy" and "sinkhorn" keep about two digits, and
# float64 is right. No warning is given. Coordinates of maps and pixels of large images have such offsets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 geomloss==0.3.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import torch
from geomloss import SamplesLoss

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("geomloss", "torch")))
generator = torch.Generator().manual_seed(0)
first = torch.rand(30, 2, generator=generator)
second = torch.rand(30, 2, generator=generator) + 0.5


def exact(x, y, blur=0.05):
    """Return the loss from the differences of the float32 points, in float64."""

    def kernel(p, q):
        return torch.exp(-((p[:, None] - q[None]) ** 2).sum(-1) / (2 * blur**2)).mean()

    x, y = x.double(), y.double()
    return float(kernel(x, x) / 2 + kernel(y, y) / 2 - kernel(x, y))


changed = False
seen = {}
for shift in (0, 100, 300, 1000):
    x, y = (first + shift).requires_grad_(), second + shift
    value = SamplesLoss("gaussian", backend="tensorized")(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    wide = float(SamplesLoss("gaussian", backend="tensorized")(x.double(), y.double()))
    others = {name: round(float(SamplesLoss(name, backend="tensorized")(x, y)), 3) for name in ("laplacian", "energy", "sinkhorn")}
    print(f"shift {shift}: exact {exact(x, y):.4f}, float64 {wide:.4f}, float32 {float(value):.4g}, others {others}")
    print(f"    largest gradient in float32: {float(gradient.abs().max()):.3g}")
    seen[shift] = float(value)
    changed |= abs(wide - exact(x, y)) > 1e-4 or abs(exact(x, y) - 0.0426) > 1e-3
if changed or abs(seen[0] - 0.0426) > 1e-3 or seen[300] < 1 or seen[1000] < 1e10:
    sys.exit("the behaviour has changed")
print("as described: the kernel is above 1")
PYTHON
