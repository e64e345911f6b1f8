#!/usr/bin/env bash
# OpenVINO's CPU device computes int64 tensors in 32 bits and returns them as int64.
#
# Expected: a model with int64 inputs and outputs keeps values of 2**31 and above, as Model.evaluate of the same model does. Seen with
# openvino 2026.4.1 and NumPy 2.4.6 (x86-64 Linux): even Reshape returns 5 for 2**40 + 5, and Equal finds the two numbers equal. The
# results have the type int64, and no warning is given. Hashed identifiers, time stamps and byte offsets are such values.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 openvino==2026.4.1
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13 as ops

values = np.array([5, 2**31, 2**40 + 5])


def both(function):
    parameter = ops.parameter(values.shape, np.int64)
    model = ov.Model([function(parameter)], [parameter])
    compiled = ov.Core().compile_model(model, "CPU")([values])[0]
    output = ov.Tensor(np.zeros(compiled.shape, compiled.dtype))
    model.evaluate([output], [ov.Tensor(values)])
    return compiled, output.data


rows = {
    "Reshape": both(lambda x: ops.reshape(x, np.array([3]), False)),
    "Add 1": both(lambda x: ops.add(x, np.array([1]))),
    "Equal 5": both(lambda x: ops.equal(x, np.array([5]))),
}
for name, (compiled, evaluated) in rows.items():
    print(f"{name}: CPU device {compiled.dtype} {compiled.tolist()}, evaluate {evaluated.tolist()}")
seen = {name: (str(compiled.dtype), compiled.tolist(), evaluated.tolist()) for name, (compiled, evaluated) in rows.items()}
if seen != {
    "Reshape": ("int64", [5, -(2**31), 5], values.tolist()),
    "Add 1": ("int64", [6, -(2**31) + 1, 6], (values + 1).tolist()),
    "Equal 5": ("bool", [True, False, True], [True, False, False]),
}:
    sys.exit("the behaviour has changed")
print("as described: the CPU device keeps the low 32 bits")
PYTHON
