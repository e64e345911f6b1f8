#!/usr/bin/env bash
# onnx.helper.make_tensor stores -9 as 7 and 300 as -4 if the type is INT4; for INT8 it raises OverflowError for a number out of range.
#
# Expected: an error for every integer type, or the limits of the type, -8 and 7, as make_tensor has it for the float8 types, where 1e9 becomes 448.
# Seen with onnx 1.23.2, ml_dtypes 0.6.0 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29, for INT4, UINT4, INT2 and UINT2: the lowest bits are
# kept, and no warning is given. The float 7.9 raises OverflowError for INT4, though 7 is in range, and names the type int4 for INT2 as well.
# INT8 stores 7.9 as 7. A rounded weight of 8, one above the largest number, becomes -8, which has the other sign.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 ml_dtypes==0.6.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

from onnx import TensorProto, helper, numpy_helper

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "ml_dtypes", "numpy")))


def stored(type_name, number):
    """Return the number that a tensor of the type holds, or the name of the error."""
    try:
        tensor = helper.make_tensor("x", getattr(TensorProto, type_name), [1], [number])
    except OverflowError:
        return "OverflowError"
    return numpy_helper.to_array(tensor).astype(float).item()


cases = {
    "INT4": {7: 7, 8: -8, -9: 7, 300: -4, 7.9: "OverflowError", -7.9: -7},
    "UINT4": {15: 15, 16: 0, -1: 15, 300: 12, 7.9: 7},
    "INT2": {1: 1, 2: -2, -3: 1},
    "UINT2": {3: 3, 4: 0, -1: 3},
    "INT8": {127: 127, 128: "OverflowError", -129: "OverflowError", 300: "OverflowError", 7.9: 7},
    "UINT8": {255: 255, 256: "OverflowError", -1: "OverflowError"},
    "FLOAT8E4M3FN": {448: 448, 1e9: 448, -1e9: -448},
}
changed = False
for type_name, expected in cases.items():
    seen = {number: stored(type_name, number) for number in expected}
    print(f"{type_name}: {', '.join(f'{number} is stored as {result}' for number, result in seen.items())}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: integers of four and two bits wrap around, and wider ones raise OverflowError")
PYTHON
