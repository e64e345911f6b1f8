#!/usr/bin/env bash
# SoftCrossEntropyLoss of segmentation-models-pytorch is half of the cross entropy if half of the pixels are ignored.
#
# Expected: the mean over the pixels that are not ignored, as torch.nn.functional.cross_entropy with the same arguments and as FocalLoss
# and LovaszLoss of the same package have it. Seen with segmentation-models-pytorch 0.6.0, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on
# 2026-11-29: ignored pixels are set to 0 and are counted in the mean, in SoftBCEWithLogitsLoss too. A batch with few labelled pixels has a
# small loss and a small gradient, 16 times too small for 1/16 of the pixels. The docstring calls the class a drop-in replacement for
# torch.nn.CrossEntropyLoss. Without ignored pixels the results are equal, with label smoothing too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 torchvision==0.29.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check segmentation-models-pytorch==0.6.0
cat > "$work/losses.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from segmentation_models_pytorch import losses
from torch.nn import functional

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("segmentation-models-pytorch", "torch")))
torch.manual_seed(0)
logits = torch.randn(2, 3, 32, 32)
labels = torch.randint(0, 3, (2, 32, 32))
masks = (labels > 0).float()[:, None]
changed = False
for rows in (0, 16, 30):
    share = 1 - rows / 32
    some = labels.clone()
    some[:, :rows] = 255
    some_masks = masks.clone()
    some_masks[:, :, :rows] = 255
    soft = losses.SoftCrossEntropyLoss(smooth_factor=0.1, ignore_index=255)(logits, some)
    correct = functional.cross_entropy(logits, some, ignore_index=255, label_smoothing=0.1)
    binary = losses.SoftBCEWithLogitsLoss(ignore_index=255)(logits[:, :1], some_masks)
    binary_correct = functional.binary_cross_entropy_with_logits(logits[:, :1, rows:], masks[:, :, rows:])
    focal = losses.FocalLoss("multiclass", ignore_index=255)(logits, some)
    focal_correct = losses.FocalLoss("multiclass")(logits[:, :, rows:].contiguous(), labels[:, rows:].contiguous())
    print(f"{rows} of 32 rows ignored:")
    print(f"    SoftCrossEntropyLoss {soft:.4f}, PyTorch {correct:.4f}, ratio {soft / correct:.4f}")
    print(f"    SoftBCEWithLogitsLoss {binary:.4f}, PyTorch {binary_correct:.4f}, ratio {binary / binary_correct:.4f}")
    print(f"    FocalLoss {focal:.4f}, of the other rows alone {focal_correct:.4f}")
    for seen, reference, factor in ((soft, correct, share), (binary, binary_correct, share), (focal, focal_correct, 1)):
        changed |= not torch.isclose(seen, reference * factor, rtol=1e-4)
if changed:
    sys.exit("the behaviour has changed")
print("as described: ignored pixels are counted")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/losses.py"
