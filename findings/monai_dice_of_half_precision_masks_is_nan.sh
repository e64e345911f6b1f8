#!/usr/bin/env bash
# The Dice metric of MONAI is NaN for float16 masks of 256 x 256, and its confusion matrix of boolean masks has no true positives.
#
# Expected: 1.0 for two equal masks, as for the same masks in bfloat16, float32 and uint8, and the counts of these types. Seen with monai
# 1.6.1, torch 2.14.1 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: DiceMetric and MeanIoU count voxels in the type of the masks, and
# a count above 65504 is infinite in float16; both are 0 or NaN then, and DiceLoss is NaN. get_confusion_matrix adds two masks and
# compares the sum with 2, which a boolean sum does not reach: all true positives count as false negatives, and the true negatives are
# right. DiceMetric accepts boolean masks. No warning is given. Masks of volumes have more than 65504 voxels, and mixed precision returns
# float16.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 monai==1.6.1
cat > "$work/masks.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import torch
from monai.losses import DiceLoss
from monai.metrics import DiceMetric, MeanIoU, get_confusion_matrix

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "numpy")))
changed = False
for size in (128, 256):
    mask = torch.ones(1, 2, size, size)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float16):
        x = mask.to(dtype)
        results = [float(metric(x, x)[0, 1]) for metric in (MeanIoU(), DiceMetric())]
        if dtype.is_floating_point:
            results.append(1 - float(DiceLoss()(x, x)))
        print(f"{size} x {size}, {dtype}: IoU, Dice and 1 - loss {results}")
        lost = size == 256 and dtype == torch.float16
        changed |= any((abs(result - 1) < 1e-3) == lost for result in results)
        changed |= lost and not np.isnan(results[1])
prediction = torch.tensor([1, 1, 1, 0, 0, 0, 0, 1]).expand(1, 2, 8)
truth = torch.tensor([1, 1, 0, 1, 0, 0, 0, 0]).expand(1, 2, 8)
for dtype in (torch.float32, torch.uint8, torch.bool):
    counts = get_confusion_matrix(prediction.to(dtype), truth.to(dtype))[0, 1].tolist()
    dice = float(DiceMetric()(prediction.to(dtype), truth.to(dtype))[0, 1])
    print(f"{dtype}: true and false positives, true and false negatives {counts}, Dice {dice:.4f}")
    changed |= counts != ([0, 2, 3, 3] if dtype == torch.bool else [2, 2, 3, 1]) or abs(dice - 4 / 7) > 1e-4
if changed:
    sys.exit("the behaviour has changed")
print("as described: the type of the masks decides")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/masks.py"
