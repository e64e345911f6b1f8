#!/usr/bin/env bash
# OpenVINO's CPU device drops a conversion to bfloat16, float16 or four-bit integers if a conversion back follows.
#
# Expected: the numbers are rounded to the type between the conversions, as by Model.evaluate of the same model, and as the device does for
# eight-bit types. Seen with openvino 2026.4.1 and NumPy 2.4.6 (x86-64 Linux, precision hint f32): 449 and 1e9 pass through bfloat16 and
# float16 unchanged, and int4 returns 44 and -9, which it cannot represent. A model that simulates the rounding of half precision, or
# clips by a conversion, gives other results, and no infinity.
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

x = np.array([449, 300, -9, 1e9], np.float32)
inf = np.inf
expected = {
    "bf16": ([449, 300, -9, 1e9], [448, 300, -9, 998244352]),
    "f16": ([449, 300, -9, 1e9], [449, 300, -9, inf]),
    "f8e5m2": ([448, 320, -8, inf], [448, 320, -8, inf]),
    "i8": ([-63, 44, -9, 0], [-63, 44, -9, 0]),
    "i4": ([-63, 44, -9, 0], [1, -4, 7, 0]),
}
changed = False
for name, rows in expected.items():
    parameter = ops.parameter(x.shape, np.float32)
    model = ov.Model([ops.convert(ops.convert(parameter, name), "f32")], [parameter])
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])[0]
    output = ov.Tensor(np.zeros_like(x))
    model.evaluate([output], [ov.Tensor(x)])
    print(f"{name}: compiled {compiled.tolist()}, Model.evaluate {output.data.tolist()}")
    changed |= compiled.tolist() != rows[0] or output.data.tolist() != rows[1]
if changed:
    sys.exit("the behaviour has changed")
print("as described: the conversions to bf16 and f16 have no effect, and i4 is i8")
PYTHON
