#!/usr/bin/env bash
# coremltools sets negative numbers of a constant to 0 for all operations if one of them is thresholded_relu.
#
# Expected: an operation leaves its input unchanged, as leaky_relu, clamped_relu, elu and threshold do. Seen with coremltools 9.0 and NumPy
# 2.4.6 on Linux: the value of thresholded_relu of a constant is computed in the array of the constant. An operation that is added to the
# program later gets the changed constant, an operation that was added earlier has the value of the unchanged one, so the order decides: the sum
# of the constant and 0 is -2.5 before and 0 after. The constant in the program is changed too, and an addition with an input of the model
# would add 0 in place of -2.5. No message is printed about it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 coremltools==9.0
cat > "$work/constants.py" <<'PYTHON'
import sys

import coremltools
import numpy as np
from coremltools.converters.mil import Builder

numbers = [-2.5, -0.5, 0.5, 2.5]
alpha, beta, zero = np.float32(1), np.float32(2), np.float32(0)
operations = {
    "thresholded_relu": ({"alpha": alpha}, [0, 0, 0, 2.5]),
    "threshold": ({"alpha": alpha}, numbers),
    "leaky_relu": ({"alpha": alpha}, numbers),
    "clamped_relu": ({"alpha": alpha, "beta": beta}, numbers),
    "elu": ({"alpha": alpha}, numbers),
}
changed = False
for name, (arguments, expected) in operations.items():
    sums = []

    @Builder.program(input_specs=[Builder.TensorSpec(shape=(4,))], opset_version=coremltools.target.iOS18)
    def program(x):
        constant = Builder.const(val=np.array(numbers, np.float32), name="constant")
        sums.append(Builder.add(x=constant, y=zero).val.tolist())
        getattr(Builder, name)(x=constant, **arguments)
        sums.append(Builder.add(x=constant, y=zero).val.tolist())
        return Builder.add(x=x, y=constant)

    kept = program.functions["main"].outputs[0].op.y.val.tolist()
    print(f"{name}: sum before {sums[0]}, sum after {sums[1]}, constant of the program {kept}")
    changed |= (sums[0], sums[1], kept) != (numbers, expected, expected)
if changed:
    sys.exit("the behaviour has changed")
print("as described: thresholded_relu changes its input")
PYTHON
"$work/venv/bin/python" -W ignore "$work/constants.py" 2> "$work/errors" || { cat "$work/errors"; exit 1; }
