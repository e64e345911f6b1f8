#!/usr/bin/env bash
# An element of a PyArrow column of matrices that are transposed views returns other numbers than the matrix: 0, 2; 1, 3; 2, 4 for 0, 3; 1, 4; 2, 5.
#
# Expected: the numbers of the matrix, because the type stores the permutation of the dimensions, and to_numpy_ndarray of the whole column returns
# them. Seen with pyarrow 26.0.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29: the element has the right shape and wrong strides. Views with more
# columns than rows raise an error about strides instead, and square ones are right. Three dimensions in reverse order have the same
# result. A cycle of the dimensions, such as images whose channels are moved to the end, has another shape, in the column and in its elements. No
# warning is given. A loader that reads one matrix after another mixes its numbers, and one that reads the whole column does not.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyarrow==26.0.1
cat > "$work/tensors.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import pyarrow as pa

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyarrow", "numpy")))
matrix = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.float32).reshape(1, 2, 3).transpose(0, 2, 1))
print(f"element of a transposed matrix: {matrix[0].to_numpy().tolist()}, in the column: {matrix.to_numpy_ndarray()[0].tolist()}")
changed = matrix[0].to_numpy().tolist() != [[0, 2], [1, 3], [2, 4]]


def compare(function, expected):
    """Return "right", "wrong", "other shape" or "error" for the result of a function."""
    try:
        result = function()
    except pa.ArrowInvalid:
        return "error"
    if result.shape != expected.shape:
        return "other shape"
    return "right" if np.array_equal(result, expected) else "wrong"


cases = [
    ((2, 3), (0, 1), "right", "right"),
    ((2, 3), (1, 0), "right", "wrong"),
    ((3, 2), (1, 0), "right", "error"),
    ((3, 3), (1, 0), "right", "right"),
    ((3, 4, 5), (0, 1, 2), "right", "right"),
    ((3, 4, 5), (1, 2, 0), "other shape", "other shape"),
    ((3, 4, 5), (2, 0, 1), "other shape", "other shape"),
    ((3, 4, 5), (2, 1, 0), "right", "wrong"),
    ((5, 4, 3), (1, 2, 0), "error", "error"),
]
for shape, permutation, whole, element in cases:
    numbers = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    array = numbers.transpose(0, *(axis + 1 for axis in permutation))
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(array)
    seen = compare(column.to_numpy_ndarray, array)
    elements = {compare(lambda index=index: column[index].to_numpy(), array[index]) for index in range(2)}
    print(f"images of {shape}, transposed by {permutation}: column {seen}, elements {', '.join(sorted(elements))}")
    changed |= seen != whole or elements != {element}
if changed:
    sys.exit("the behaviour has changed")
print("as described: elements of permuted tensors have other numbers")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/tensors.py"
