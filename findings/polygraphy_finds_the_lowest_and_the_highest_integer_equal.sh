#!/usr/bin/env bash
# Polygraphy's comparison passes for -2147483648 and 2147483647 in int32, for the limits of int64, and for 0 and 2**64 - 1, but not in the other order.
#
# Expected: a mismatch, as for the limits of int8, int16 and uint32. Seen with polygraphy 0.53.6 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30 for
# CompareFunc.simple with the default tolerances and with an absolute tolerance of 1: the difference is computed in the type of the outputs,
# where it wraps around to 1; for int8 it is 255. In uint64, 0 - (2**64 - 1) is 1, and (2**64 - 1) - 0 is not. The result reports a largest absolute
# difference of 1. Infinity and infinity are a mismatch unless infinities_compare_equal is set, which is documented. Index tensors that use
# the lowest integer for "none" and those that use the highest one are reported as equal outputs of two runtimes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 polygraphy==0.53.6
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from polygraphy.comparator import CompareFunc, IterationResult
from polygraphy.logger import G_LOGGER

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("polygraphy", "numpy")))
G_LOGGER.module_severity = G_LOGGER.CRITICAL


def matches(kind, left, right, **tolerances):
    """Return whether two outputs with one number each pass the comparison."""
    outputs = [IterationResult({"y": np.array([number], kind)}) for number in (left, right)]
    return bool(CompareFunc.simple(**tolerances)(*outputs)["y"])


described = {
    "int8": (False, False),
    "int16": (False, False),
    "int32": (True, True),
    "int64": (True, True),
    "uint32": (False, False),
    "uint64": (True, False),
}
same = True
for kind, expected in described.items():
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    seen = matches(kind, low, high, rtol=0, atol=1), matches(kind, high, low, rtol=0, atol=1)
    print(f"{kind}: {low} and {high} match: {seen[0]}; in the other order: {seen[1]}; 0 and 100 match: {matches(kind, 0, 100)}")
    same &= seen == expected and not matches(kind, 0, 100, rtol=0, atol=1)
    same &= matches(kind, low, high) == expected[0] or kind == "uint64"
by_default = [matches("int32", -(2**31), 2**31 - 1), matches("int64", -(2**63), 2**63 - 1), matches("int32", 2 * 10**9, -2 * 10**9)]
print("default tolerances, int32 and int64 limits, 2e9 and -2e9:", *by_default)
if not same or by_default != [True, True, False]:
    sys.exit("the behaviour has changed")
print("as described: the limits of int32 and of int64 match")
PYTHON
