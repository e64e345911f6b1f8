#!/usr/bin/env bash
# TVM's conversions to and from eight-bit floats move the bits: 0 becomes 0.0078125, infinity becomes 1, and 1e10 becomes -2.5.
#
# Expected: the rules of ml_dtypes, PyTorch and the OCP specification: 0 stays 0, small numbers become subnormal numbers or 0, and NaN stays
# NaN. Seen with apache-tvm 0.27.0.post1, ml_dtypes 0.6.0 and NumPy 2.4.6 (x86-64 Linux, target llvm): only numbers in the normal range
# are right. The conversion shifts the exponent and drops its high bits, so numbers out of range wrap around, with another sign.
# The conversion back reads the same bits as ml_dtypes wrote, and turns 0 into 0.0078125 and the NaN of float8_e4m3fn into 480.
# bfloat16 is converted correctly. A weight of 0, as in padding and pruned layers, is not 0 after a conversion, and no warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.15.post2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np
import tvm
from tvm import relax


def converted(x, *dtypes):
    """Return an array after conversions to the types, one after another, compiled by TVM."""
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType(x.shape, x.dtype.name))
    with builder.function("main", [variable]):
        with builder.dataflow():
            result = variable
            for dtype in dtypes:
                result = relax.op.astype(result, dtype)
            output = builder.emit_output(builder.emit(result))
        builder.emit_func_output(output)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


inf, nan = np.inf, np.nan
x = np.array([0, 0.001, 0.5, 448, 512, 1e10, inf, nan], np.float32)
expected = {
    "float8_e4m3fn": ([0.0078125, 0.0078125, 0.5, 448, -0.0078125, 2.25, 1, 1.5], [0, 0.001953125, 0.5, 448, nan, nan, nan, nan]),
    "float8_e5m2": ([2.0**-15, 2.0**-10, 0.5, 448, 512, -2.5, 1, 1.5], [0, 2.0**-10, 0.5, 448, 512, inf, inf, nan]),
    "bfloat16": ([0, 0.00099945068359375, 0.5, 448, 512, 9999220736, inf, nan],) * 2,
}
print(f"{'numbers':26} {x.tolist()}")
changed = False
for name, rows in expected.items():
    seen = converted(x, name, "float32"), x.astype(getattr(ml_dtypes, name)).astype(np.float32)
    print(f"{name + ', TVM':26} {seen[0].tolist()}\n{name + ', ml_dtypes':26} {seen[1].tolist()}")
    changed |= not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(seen, rows))
back = converted(np.array([0, nan], ml_dtypes.float8_e4m3fn), "float32")
print(f"0 and NaN of ml_dtypes' float8_e4m3fn, read by TVM: {back.tolist()}")
if changed or back.tolist() != [0.0078125, 480]:
    sys.exit("the behaviour has changed")
print("as described: no conversion to float8 has a zero, an infinity or a NaN")
PYTHON
