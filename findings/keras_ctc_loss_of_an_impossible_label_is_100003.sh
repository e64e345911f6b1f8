#!/usr/bin/env bash
# Keras' CTC loss of a label that does not fit into its steps is 100003 in the JAX and NumPy back ends, and infinite in torch.
#
# Expected: one number in all back ends; infinity, because no alignment exists, as three equal labels need five steps and get four. Seen with keras
# 3.15.1, torch 2.13.0, jax 0.10.2 and NumPy 2.4.6 (CPU): 1e5 and some, so that the mean over a batch is large but finite, and a check for
# infinity finds no such label. With five steps all agree.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 jax==0.10.2 keras==3.15.1
cat > "$work/ctc.py" <<'PYTHON'
import math
import sys

import keras
import numpy as np

name = keras.backend.backend()
logits = np.zeros((1, 8, 5), np.float32)
labels = np.full((1, 3), 2, np.int32)
losses = {}
for steps in (4, 5):
    lengths = np.array([3], np.int32), np.array([steps], np.int32)
    loss = keras.ops.ctc_loss(labels, logits, *lengths, mask_index=0)
    losses[steps] = float(keras.ops.convert_to_numpy(loss)[0])
print(f"{name}: three equal labels, five classes as likely: {losses[4]:.6g} in four steps, {losses[5]:.6g} in five")
same = math.isclose(losses[5], 5 * math.log(5), rel_tol=1e-5)  # one alignment
same &= losses[4] == math.inf if name == "torch" else 1e5 < losses[4] < 1.001e5
sys.exit(0 if same else "changed")
PYTHON
for backend in numpy jax torch; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu HOME="$work" "$work/venv/bin/python" -W ignore "$work/ctc.py"
done
