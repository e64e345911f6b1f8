#!/usr/bin/env bash
# PyTorch's ONNX export turns logsigmoid(-20) into -infinity; the binary cross entropy of the logit -20 and logaddexp of 200 are infinite.
#
# Expected: -20, 20 and 200.69, as the functions of PyTorch return, which exist to avoid overflow. Seen with torch 2.13.0, onnxscript 0.7.2,
# onnx 1.23.2, ONNX Runtime 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the export writes the textbook formulas,
# Log(Sigmoid(x)) and Log(Exp(x) + Exp(y)). The Sigmoid of ONNX Runtime is 0 from -18 on; Exp is infinite from 89 on and 0 from -104 on.
# logaddexp2 has the same fault from 128 on. -softplus(-x) and logsumexp of the stacked operands are exported without it. No
# warning is given. A loss that is computed in the exported model is infinite for a class of which the network is sure in the wrong way.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2
cat >"$work/logarithms.py" <<'PYTHON'
import importlib.metadata
import logging
import sys

import numpy as np
import onnxruntime
import torch
from torch.nn import functional

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxscript", "onnx", "onnxruntime")))
logging.disable(logging.CRITICAL)
inf = np.inf


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function, x):
    program = torch.onnx.export(Model(function).eval(), (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def cross_entropy(x):
    return functional.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none")


x = torch.tensor([-200.0, -20, 0, 20, 200])
ln2 = np.log(2)
# name, function, result of PyTorch, result of the exported model
cases = [
    ("logsigmoid", functional.logsigmoid, [-200, -20, -ln2, 0, 0], [-inf, -inf, -ln2, 0, 0]),
    ("binary cross entropy", cross_entropy, [200, 20, ln2, 0, 0], [inf, inf, ln2, 0, 0]),
    ("logaddexp", lambda x: torch.logaddexp(x, x), x.numpy() + ln2, [-inf, -20 + ln2, ln2, 20 + ln2, inf]),
    ("logaddexp2", lambda x: torch.logaddexp2(x, x), x.numpy() + 1, [-inf, -19, 1, 21, inf]),
    ("-softplus(-x)", lambda x: -functional.softplus(-x), [-200, -20, -ln2, 0, 0], [-200, -20, -ln2, 0, 0]),
    ("logsumexp", lambda x: torch.stack([x, x]).logsumexp(0), x.numpy() + ln2, x.numpy() + ln2),
]
changed = False
for name, function, torch_expected, export_expected in cases:
    correct, seen = function(x).numpy(), exported(function, x)
    print(f"{name} of {x.tolist()}: PyTorch {correct.round(3).tolist()}, exported {seen.round(3).tolist()}")
    changed |= not (np.allclose(correct, torch_expected, atol=1e-4) and np.allclose(seen, export_expected, atol=1e-4))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the exported formulas overflow")
PYTHON
"$work/venv/bin/python" -W ignore "$work/logarithms.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
