#!/usr/bin/env bash
# TVM's argmax is -1 for an array of zeros of type uint8, and for every array in which all elements are the lowest value of the type.
#
# Expected: 0, the first index, as in NumPy, ONNX and PyTorch. Seen with apache-tvm 0.27.0.post1 and NumPy 2.4.6 (x86-64 Linux, target llvm):
# argmax is -1 for uint8 zeros, for int8 numbers -128 and for a float32 row of -inf, and argmin is -1 for uint8 numbers 255 and for a row of
# +inf. The maximum of a row of -inf is the lowest finite number, -3.4e38, and max pooling has the same result. The minimum of a row of +inf
# is 3.4e38. A black image, or a row of a score matrix that is fully masked, gets an index that later code reads as the last element.
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


def computed(function, x):
    """Return the result of one operator, compiled by TVM."""
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType(x.shape, x.dtype.name))
    with builder.function("main", [variable]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(function(variable)))
        builder.emit_func_output(output)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy().ravel().tolist()


inf = np.inf
lowest = float(np.finfo(np.float32).min)
rows = np.array([[-inf, -inf], [-1, -2]], np.float32)
results = {
    "argmax of uint8 zeros": (computed(op.argmax, np.zeros(4, np.uint8)), [-1]),
    "argmax of int8 -128": (computed(op.argmax, np.full(4, -128, np.int8)), [-1]),
    "argmax of uint8 ones": (computed(op.argmax, np.ones(4, np.uint8)), [0]),
    "argmin of uint8 255": (computed(op.argmin, np.full(4, 255, np.uint8)), [-1]),
    "argmax of rows (-inf, -inf) and (-1, -2)": (computed(lambda x: op.argmax(x, axis=1), rows), [-1, 0]),
    "max of the rows": (computed(lambda x: op.max(x, axis=1), rows), [lowest, -1]),
    "argmin of the negated rows": (computed(lambda x: op.argmin(x, axis=1), -rows), [-1, 0]),
    "min of the negated rows": (computed(lambda x: op.min(x, axis=1), -rows), [-lowest, 1]),
    "max_pool1d of the rows": (computed(lambda x: op.nn.max_pool1d(x, 2), rows.reshape(1, 2, 2)), [lowest, -1]),
}
for name, (result, _) in results.items():
    print(f"{name}: {result}")
if any(result != expected for result, expected in results.values()):
    sys.exit("the behaviour has changed")
print("as described: the index of the largest element is -1")
PYTHON
