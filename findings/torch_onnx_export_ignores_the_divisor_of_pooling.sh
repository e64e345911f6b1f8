#!/usr/bin/env bash
# PyTorch's ONNX export ignores divisor_override of average pooling: sums of four pixels, 10 and 18, become averages, 2.5 and 4.5.
#
# Expected: the numbers of PyTorch, for example by a multiplication behind AveragePool, or an error. Seen with torch 2.13.0, onnxscript 0.7.2,
# onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29, in two and three dimensions: the exported graph has one
# AveragePool, whose divisor is the size of the window, and no warning is given. divisor_override=1 is the usual way to write a sum over
# windows. The same sums by a convolution with ones, or by a multiplication with the size of the window, are exported correctly.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2
cat >"$work/pooling.py" <<'PYTHON'
import importlib.metadata
import logging
import sys
import warnings

import numpy as np
import onnxruntime
import torch
from torch.nn import functional

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxscript", "onnx", "onnxruntime")))
logging.disable(logging.CRITICAL)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def both(function, x):
    """Return the results of PyTorch and of the exported model, and the warnings that name the divisor."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = torch.onnx.export(Model(function).eval(), (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    named = [each for each in caught if "divisor" in str(each.message)]
    return function(x).numpy(), session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], named


image = torch.arange(16.0).reshape(1, 1, 4, 4)
volume = torch.arange(64.0).reshape(1, 1, 4, 4, 4)
# name, function, image, the factor between the results
cases = [
    ("avg_pool2d, divisor_override=1", lambda x: functional.avg_pool2d(x, 2, divisor_override=1), image, 4),
    ("avg_pool2d, divisor_override=3", lambda x: functional.avg_pool2d(x, 2, divisor_override=3), image, 4 / 3),
    ("avg_pool3d, divisor_override=1", lambda x: functional.avg_pool3d(x, 2, divisor_override=1), volume, 8),
    ("avg_pool2d * 4", lambda x: functional.avg_pool2d(x, 2) * 4, image, 1),
    ("conv2d with ones", lambda x: functional.conv2d(x, torch.ones(1, 1, 2, 2), stride=2), image, 1),
]
changed = False
for name, function, x, factor in cases:
    correct, seen, named = both(function, x)
    print(f"{name}: PyTorch {correct.ravel()[:2].round(3).tolist()}, exported {seen.ravel()[:2].round(3).tolist()}")
    changed |= not np.allclose(correct, seen * factor, rtol=1e-5) or bool(named)
if changed:
    sys.exit("the behaviour has changed")
print("as described: exported pooling divides by the size of the window")
PYTHON
"$work/venv/bin/python" "$work/pooling.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
