#!/usr/bin/env bash
# AUROC of TorchMetrics is 0.5 for logits that separate the classes perfectly, if all of them are above 17 or so.
#
# Expected: 1.0 for the logits 20, 30, 40 and 60 with the classes 0, 0, 1 and 1, as scikit-learn returns, because the metric depends on
# the order of the scores only. Seen with torchmetrics 1.9.0, torch 2.14.1, scikit-learn 1.8.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on
# 2026-11-29: the metric applies a sigmoid to scores outside of [0, 1], as documented, in the type of the scores, and the sigmoid of each
# of these logits is 1.0 in float32. Negated logits keep their order, because float32 has small numbers near 0. In float64, logits from 40
# are equal, in float16 logits from 9. average_precision is affected in the same way. No warning is given. The more certain a network is,
# the worse is its result.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 torch==2.14.1 torchmetrics==1.9.0 scikit-learn==1.8.0
cat > "$work/logits.py" <<'PYTHON'
import importlib.metadata
import sys

import sklearn.metrics
import torch
from torchmetrics.functional import auroc, average_precision

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchmetrics", "torch", "scikit-learn", "numpy")))
cases = [
    (torch.float32, [-2.0, -1.0, 1.0, 2.0], 1.0),
    (torch.float32, [20.0, 30.0, 40.0, 60.0], 0.5),
    (torch.float32, [-60.0, -40.0, -30.0, -20.0], 1.0),
    (torch.float32, [-5.0, 20.0, 40.0, 60.0], 0.75),
    (torch.float64, [20.0, 25.0, 30.0, 35.0], 1.0),
    (torch.float64, [40.0, 50.0, 60.0, 70.0], 0.5),
    (torch.float16, [9.0, 10.0, 11.0, 12.0], 0.5),
]
classes = torch.tensor([0, 0, 1, 1])
changed = False
for dtype, logits, expected in cases:
    scores = torch.tensor(logits, dtype=dtype)
    area = float(auroc(scores, classes, task="binary"))
    precision = float(average_precision(scores, classes, task="binary"))
    wanted = float(sklearn.metrics.roc_auc_score(classes.numpy(), scores.numpy()))
    print(f"{dtype}, {logits}: AUROC {area}, average precision {precision:.4f}; scikit-learn {wanted}")
    changed |= area != expected or wanted != 1 or (precision == 1) != (expected == 1)
if changed:
    sys.exit("the behaviour has changed")
print("as described: large logits are ranked as equal")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/logits.py"
