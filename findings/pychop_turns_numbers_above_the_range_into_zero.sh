#!/usr/bin/env bash
# Chop of pychop turns numbers that are too large for the format into 0: as float16, 70000 is 0, 65520 is 65536 and 200000 is infinite.
#
# Expected: an infinity for every number from 65520 on, as NumPy and ml_dtypes return, or the largest number, 65504. Seen with pychop 0.6.2, NumPy
# 2.4.6 and ml_dtypes 0.6.0 (CPU, x86-64 Linux) on 2026-11-29: numbers between the limit and the next power of two are rounded to that power,
# which the format does not have; numbers up to twice this power become 0, and only larger ones are infinite. The torch back end has the
# same results. The formats float8_e5m2, with 70000, and bfloat16, with 4e38, are affected as well. FaultChop of the same package is right. No
# warning is given. A simulated training in float16 does not see that its activations overflow: they vanish.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 torch==2.13.0 pychop==0.6.2
cat > "$work/chop.py" <<'PYTHON'
import importlib.metadata
import sys

import ml_dtypes
import numpy as np
import pychop
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pychop", "numpy", "ml_dtypes", "torch")))
cases = [
    ("float16", (5, 10), np.float16, [65504, 65519, 65520, 65536, 70000, 131071, 131072, 200000], [65504, 65504, 65536, 0, 0, 0, np.inf, np.inf]),
    ("float8_e5m2", (5, 2), ml_dtypes.float8_e5m2, [57344, 61000, 62000, 65536, 70000, 200000], [57344, 57344, 65536, 0, 0, np.inf]),
    ("bfloat16", (8, 7), ml_dtypes.bfloat16, [1e38, 4e38, 6e38, 1e39], [float(ml_dtypes.bfloat16(1e38)), 0, 0, np.inf]),
]
changed = False
for name, bits, dtype, numbers, described in cases:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.array(numbers, np.float64)
        expected = numbers.astype(dtype).astype(np.float64)
        pychop.backend("numpy")
        seen = pychop.Chop(*bits)(numbers.copy())
        pychop.backend("torch")
        other = pychop.Chop(*bits)(torch.tensor(numbers)).numpy()
    print(f"{name}: {numbers.tolist()}\n  expected {expected.tolist()}\n  Chop     {seen.tolist()}\n  in torch {other.tolist()}")
    changed |= seen.tolist() != described or other.tolist() != described
    changed |= not np.isinf(expected[-3:]).all() or not np.isfinite(expected[0])
pychop.backend("numpy")
fault = pychop.FaultChop(prec="h")(np.array([65520.0, 70000, 131071]))
print("FaultChop, float16:", fault.tolist())
changed |= not np.isinf(fault).all()
if changed:
    sys.exit("the behaviour has changed")
print("as described: numbers above the range become 0")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/chop.py"
