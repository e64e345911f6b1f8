#!/usr/bin/env bash
# MutualInformation of PyTorch-Ignite is NaN if no prediction gives a class a probability: for the logits 200, 0, 0 and 0, 200, 0.
#
# Expected: ln(2), 0.693, for two certain predictions of different classes, as for the logits 100, 0, 0 and 0, 100, 0, because a
# probability of 0 adds nothing to an entropy; Entropy of the same package is 0 for them, as expected. Seen with pytorch-ignite 0.5.5, torch 2.13.0,
# and SciPy 1.17.1 (CPU, x86-64 Linux) on 2026-11-29: the softmax of the third class is 0 in float32 from a difference of 104 on, and the metric
# multiplies this 0 by its logarithm. In float16 logits, a difference of 18 is enough. One unused class of many makes the
# result NaN for the whole data set, and no warning is given. The measure for sharp and varied predictions fails at the best ones.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 scipy==1.17.1 pytorch-ignite==0.5.5
cat > "$work/information.py" <<'PYTHON'
import importlib.metadata
import math
import sys

import numpy as np
import scipy.special
import scipy.stats
import torch
from ignite.metrics import Entropy, MutualInformation

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pytorch-ignite", "torch", "scipy")))


def value(metric, logits):
    """Return the metric of one batch of logits."""
    metric.update((logits, torch.zeros(len(logits), dtype=torch.long)))
    return metric.compute()


cases = [
    (torch.float32, [[10, 0, 0], [0, 10, 0]], False),
    (torch.float32, [[100, 0, 0], [0, 100, 0]], False),
    (torch.float32, [[200, 0, 0], [0, 200, 0]], True),
    (torch.float32, [[200, 0, 0], [0, 200, 0], [0, 0, 200]], False),
    (torch.float64, [[200, 0, 0], [0, 200, 0]], False),
    (torch.float16, [[10, 0, 0], [0, 10, 0]], False),
    (torch.float16, [[30, 0, 0], [0, 30, 0]], True),
]
changed = False
for dtype, logits, affected in cases:
    rows = torch.tensor(logits, dtype=dtype)
    seen, entropy = value(MutualInformation(), rows), value(Entropy(), rows)
    probabilities = scipy.special.softmax(np.array(logits, np.float64), axis=1)
    expected = scipy.stats.entropy(probabilities.mean(0)) - scipy.stats.entropy(probabilities, axis=1).mean()
    print(f"{dtype}, {logits}: mutual information {seen:.4f}, expected {expected:.4f}, entropy {entropy:.4f}")
    changed |= math.isnan(seen) != affected or (not affected and abs(seen - expected) > 2e-3) or math.isnan(entropy)
if changed:
    sys.exit("the behaviour has changed")
print("as described: a class without a probability makes the mutual information NaN")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/information.py"
