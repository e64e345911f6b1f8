#!/usr/bin/env bash
# tinygrad's sort of a tensor with NaN returns elements that the tensor does not have, and its argmax an index beyond the end.
#
# Expected: the elements in some order, and an index of the tensor. Seen with tinygrad 0.14.0 and NumPy 2.4.6 on its device PYTHON: the sort of
# 2, 1, NaN is 1, 2, inf; the sort of 1, NaN, 2 is 1, 1, 2; a NaN in front makes all elements NaN. The indices of the first are 1, 0, 0, so
# gathering with them does not give the sorted values. argmax of NaN, 1, 2 is 3, and indexing with it returns 0. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps numpy==2.4.6 tinygrad==0.14.0
XDG_CACHE_HOME="$work/cache" DEV=PYTHON "$work/venv/bin/python" - <<'PYTHON'
import sys

from tinygrad import Tensor

nan = float("nan")
expected = {
    (3.0, 1.0, 2.0): ([1.0, 2.0, 3.0], [1, 2, 0], 0, 3.0),
    (2.0, 1.0, nan): ([1.0, 2.0, float("inf")], [1, 0, 0], 0, 2.0),
    (1.0, nan, 2.0): ([1.0, 1.0, 2.0], [0, 0, 2], 2, 2.0),
    (nan, 1.0, 2.0): ([nan] * 3, [0, 0, 0], 3, 0.0),
}
changed = False
for values, row in expected.items():
    tensor = Tensor(list(values))
    elements, indices = tensor.sort()
    largest = tensor.argmax()
    seen = elements.tolist(), indices.tolist(), largest.item(), tensor[largest].item()
    print(f"{list(values)}: sort {seen[0]}, indices {seen[1]}, argmax {seen[2]}, element at argmax {seen[3]}")
    changed |= str(seen) != str(row)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the sorted elements are not those of the tensor")
PYTHON
