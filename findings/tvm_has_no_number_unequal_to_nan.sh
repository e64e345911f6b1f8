#!/usr/bin/env bash
# In TVM a NaN is neither equal to a number nor unequal to it, and the maximum of 2, NaN and 1 is 1.
#
# Expected: NaN != x is true, as in IEEE 754, NumPy and ONNX, and a maximum that is NaN, or 2 if NaN is ignored. Seen with apache-tvm
# 0.27.0.post1 and NumPy 2.4.6 (x86-64 Linux, target llvm): equal and not_equal are both false, for float16 and float64 too, so x != x finds no
# NaN; isnan does. max and min start again behind a NaN: the maximum of 2, NaN, 1 is 1, the minimum of 1, NaN, 2 is 2, and argmax returns
# the same places. maximum(NaN, 1) is 1 and maximum(1, NaN) is NaN. relu(NaN) is 0, sign(NaN) is 0, and clip(NaN, -1, 6) is 6, the largest value.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.15.post2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

nan = np.nan


def computed(function, *values, dtype=np.float32):
    """Return the result of one operator, compiled by TVM."""
    operands = [np.array(x, dtype) for x in values]
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{place}", relax.TensorType(x.shape, x.dtype.name)) for place, x in enumerate(operands)]
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(function(*variables)))
        builder.emit_func_output(output)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(x) for x in operands]).numpy().tolist()


results = {
    "NaN == 1, 2 == 1": (computed(op.equal, [nan, 2], [1, 1]), [False, False]),
    "NaN != 1, 2 != 1": (computed(op.not_equal, [nan, 2], [1, 1]), [False, True]),
    "x != x for NaN, float16": (computed(lambda x: op.not_equal(x, x), [nan], dtype=np.float16), [False]),
    "x != x for NaN, float64": (computed(lambda x: op.not_equal(x, x), [nan], dtype=np.float64), [False]),
    "isnan(NaN)": (computed(op.isnan, [nan]), [True]),
    "max(2, NaN, 1)": (computed(op.max, [2, nan, 1]), 1),
    "argmax(2, NaN, 1)": (computed(op.argmax, [2, nan, 1]), 2),
    "min(1, NaN, 2)": (computed(op.min, [1, nan, 2]), 2),
    "max(1, 2, NaN)": (computed(op.max, [1, 2, nan]), nan),
    "maximum(NaN, 1), maximum(1, NaN)": (computed(op.maximum, [nan, 1], [1, nan]), [1, nan]),
    "relu(NaN)": (computed(op.nn.relu, [nan]), [0]),
    "sign(NaN)": (computed(op.sign, [nan]), [0]),
    "clip(NaN, -1, 6)": (computed(lambda x: op.clip(x, -1, 6), [nan]), [6]),
}
for name, (result, _) in results.items():
    print(f"{name}: {result}")
if any(not np.array_equal(result, expected, equal_nan=True) for result, expected in results.values()):
    sys.exit("the behaviour has changed")
print("as described: NaN != 1 is false, and max(2, NaN, 1) is 1")
PYTHON
