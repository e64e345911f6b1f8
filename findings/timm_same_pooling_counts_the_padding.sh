#!/usr/bin/env bash
# timm's AvgPool2dSame ignores count_include_pad=False: the average of ones is 0.44 in the corners and 0.67 at the edges.
#
# Expected: 1 everywhere, as torch.nn.AvgPool2d with count_include_pad=False and padding of 1 returns. Seen with timm 1.0.31, torch 2.14.1 and
# NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: zeros are added to the image, and the image with the zeros is pooled without padding, so the
# argument has no effect. create_pool2d("avg", ..., padding="same") has the same result. No error is raised. Padding "same"
# is that of TensorFlow, whose average pooling does not count the padding, so the edges of ported weights see darker images.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchvision==0.29.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check timm==1.0.31
cat > "$work/pooling.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from timm.layers import AvgPool2dSame, create_pool2d

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("timm", "torch")))
image = torch.ones(1, 1, 7, 7)
counted, edge, inner = 4 / 9, 6 / 9, 1.0
with_zeros = torch.tensor([[counted, edge, edge, counted], [edge, inner, inner, edge], [edge, inner, inner, edge], [counted, edge, edge, counted]])
ones = torch.ones(4, 4)
cases = {
    "torch.nn.AvgPool2d, count_include_pad=True": (torch.nn.AvgPool2d(3, 2, 1), with_zeros),
    "torch.nn.AvgPool2d, count_include_pad=False": (torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False), ones),
    "AvgPool2dSame, count_include_pad=True": (AvgPool2dSame(3, 2), with_zeros),
    "AvgPool2dSame, count_include_pad=False": (AvgPool2dSame(3, 2, count_include_pad=False), with_zeros),
    "create_pool2d, count_include_pad=False": (create_pool2d("avg", 3, 2, padding="same", count_include_pad=False), with_zeros),
}
changed = False
for name, (function, expected) in cases.items():
    seen = function(image)[0, 0]
    print(f"{name}: first row {[round(value, 4) for value in seen[0].tolist()]}")
    changed |= seen.shape != expected.shape or not torch.allclose(seen, expected)
if changed:
    sys.exit("the behaviour has changed")
print("as described: count_include_pad=False has no effect")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/pooling.py"
