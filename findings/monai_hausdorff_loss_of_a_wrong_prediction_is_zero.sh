#!/usr/bin/env bash
# HausdorffDTLoss of MONAI is 0 for a prediction of foreground everywhere, if the target has no foreground at all.
#
# Expected: the largest loss, as DiceLoss returns 1.0. Seen with monai 1.6.1, torch 2.14.1, scipy 1.17.1 and NumPy 2.4.6 (CPU, x86-64
# Linux) on 2026-11-29: the loss multiplies the error by the distances of both masks from their edges, and a mask without an edge counts
# as distance 0. The loss is also 0 for an empty prediction and a full target. A small lesion against an empty target costs 0.11, 50 times
# less than the same lesion in another place, and LogHausdorffDTLoss behaves in the same way. No warning is given. Crops without a lesion,
# or inside of one, do not correct a network that is wrong about all voxels.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 torch==2.14.1 monai==1.6.1
cat > "$work/hausdorff.py" <<'PYTHON'
import importlib.metadata
import sys

import torch
from monai.losses import DiceLoss, HausdorffDTLoss, LogHausdorffDTLoss

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("monai", "torch", "scipy", "numpy")))
empty = torch.zeros(1, 1, 16, 16)
full = torch.ones(1, 1, 16, 16)
lesion = empty.clone()
lesion[..., 2:6, 2:6] = 1
cases = {
    "full prediction, empty target": (full, empty, 0),
    "empty prediction, full target": (empty, full, 0),
    "lesion, empty target": (lesion, empty, 0.109375),
    "lesion, lesion in another place": (lesion.flip(-1), lesion, 5.65625),
    "full prediction, lesion": (full, lesion, 48.75),
    "lesion, same lesion": (lesion, lesion, 0),
}
changed = False
for name, (prediction, target, expected) in cases.items():
    hausdorff = float(HausdorffDTLoss()(prediction, target))
    logarithm = float(LogHausdorffDTLoss()(prediction, target))
    dice = float(DiceLoss()(prediction, target))
    print(f"{name}: Hausdorff {hausdorff}, its logarithm {logarithm:.4f}, Dice {dice:.4f}")
    changed |= abs(hausdorff - expected) > 1e-4 or (logarithm == 0) != (expected == 0)
    changed |= (dice > 0.8) == ("same" in name)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the loss of an entirely wrong prediction is 0")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/hausdorff.py"
