#!/usr/bin/env bash
# The composition of the layouts (3,2):(2,1) and 4:1 in pycute has three elements, 0, 2 and 4, in place of 0, 2, 4 and 1.
#
# Expected: four elements, because the composition of A and B is defined as A(B(i)) for each i of B, or an assertion, as pycute raises for strides
# that do not divide: 4 elements cannot be written by a shape with 3 in front. Seen with nvidia-cutlass 4.2.0.0 (pycute, no GPU) on
# 2026-11-29: the quotient 4 // 3 is used without a test of the remainder. A layout of seven elements becomes one of five in the same way. With
# shapes that divide, the compositions of this script agree with the definition. The first elements of a matrix, selected by a
# composition, are fewer than selected, and no error is raised; size() of the result shows it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps nvidia-cutlass==4.2.0.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

from pycute import Layout, composition, size

print(f"nvidia-cutlass {importlib.metadata.version('nvidia-cutlass')}")


def elements(layout):
    return [layout(i) for i in range(size(layout))]


# A, B, the elements of the composition in pycute; None: as by definition
cases = [
    (Layout((3, 2), (2, 1)), Layout(4, 1), [0, 2, 4]),
    (Layout((5, 3), (3, 1)), Layout(7, 1), [0, 3, 6, 9, 12]),
    (Layout((2, 3), (3, 1)), Layout(3, 1), [0, 3]),
    (Layout((3, 2), (2, 1)), Layout(6, 1), None),
    (Layout((4, 2), (2, 1)), Layout(2, 2), None),
    (Layout((6, 2), (2, 1)), Layout((2, 3), (3, 1)), None),
]
changed = False
for a, b, expected in cases:
    seen, definition = elements(composition(a, b)), [a(b(i)) for i in range(size(b))]
    print(f"{a} with {b}: {composition(a, b)}, elements {seen}, by definition {definition}")
    changed |= seen != (definition if expected is None else expected) or (expected is not None and seen == definition)
try:
    composition(Layout((2, 2), (2, 1)), Layout(2, 3))
    error = "no error"
except AssertionError:
    error = "AssertionError"
print(f"a stride that does not divide: {error}")
if changed or error != "AssertionError":
    sys.exit("the behaviour has changed")
print("as described: a composition has fewer elements than the second layout, and no error is raised")
PYTHON
