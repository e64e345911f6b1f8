#!/usr/bin/env bash
# PyTorch's ONNX export returns the mean of the masked values, or NaN, for a query that may see no key, where PyTorch returns zeros.
#
# Expected: zeros, as scaled_dot_product_attention returns on a CPU for both kinds of mask. Seen with torch 2.13.0, onnxscript 0.7.2, onnx 1.23.2,
# ONNX Runtime 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29 for the default opset: with a mask of booleans, a row of False
# becomes the mean of all values of that row's keys, although the graph replaces NaN behind the Softmax; with a mask of 0 and -infinity it is
# NaN, and nothing replaces it. From opset 23 on, the export writes one Attention, and both rows are zeros. Padded queries of a batch are
# such rows; a mean over all queries, or a normalization of the output, reads them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2
cat >"$work/attention.py" <<'PYTHON'
import importlib.metadata
import logging
import sys

import numpy as np
import onnxruntime
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxscript", "onnx", "onnxruntime")))
logging.disable(logging.CRITICAL)


class Attention(torch.nn.Module):
    def forward(self, query, key, value, mask):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)


def exported(operands, opset):
    program = torch.onnx.export(Attention().eval(), operands, dynamo=True, verbose=False, opset_version=opset)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: x.numpy() for each, x in zip(session.get_inputs(), operands)})[0][0, 0]


query = key = torch.ones(1, 1, 2, 2)
value = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
booleans = torch.tensor([[True, False], [False, False]])
numbers = torch.where(booleans, 0.0, -torch.inf)
zeros, mean, nan = [[1, 2], [0, 0]], [[1, 2], [2, 3]], [[1, 2], [np.nan, np.nan]]
# name, mask, opset, result of the exported model
cases = [
    ("booleans, default opset", booleans, None, mean),
    ("booleans, opset 23", booleans, 23, zeros),
    ("0 and -infinity, default opset", numbers, None, nan),
    ("0 and -infinity, opset 23", numbers, 23, zeros),
]
changed = False
for name, mask, opset, expected in cases:
    operands = (query, key, value, mask)
    correct, seen = Attention()(*operands).numpy()[0, 0], exported(operands, opset)
    print(f"{name}: PyTorch {correct.tolist()}, exported {seen.tolist()}")
    changed |= not np.allclose(correct, zeros) or not np.allclose(seen, expected, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the second query, which may see no key, is not zero with the default opset")
PYTHON
"$work/venv/bin/python" -W ignore "$work/attention.py" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
