#!/usr/bin/env bash
# The volatility-based momentum of a price that stays at 100, with lows of 99 and highs of 101, is -50 with finta; by its formula it is 0.
#
# Expected: the price less the price n periods ago, over the average true range of v periods, as the description of the function writes it. Seen with
# finta 1.3, pandas 3.1.1 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: the old price is subtracted once more from the difference, so that the result is
# the momentum less the old price in units of the range. It is negative unless the price has doubled, and a price that rises by a half within the
# periods has a negative momentum too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check finta==1.3 pandas==3.1.1 numpy==2.3.5
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import pandas as pd
from finta import TA

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("finta", "pandas", "numpy")))
same = True
for name, rate, sign in (("constant", 0.0, 0), ("rising by half in 12 periods", 50 / 12, 1), ("rising threefold in 12 periods", 200 / 12, 1)):
    close = np.full(40, 100.0)
    close[27:] += rate * np.arange(13)
    bars = pd.DataFrame({"open": close, "high": close + 1, "low": close - 1, "close": close})
    seen = float(TA.VBM(bars, roc_period=12, atr_period=26).iloc[-1])
    before = np.concatenate([close[:1], close[:-1]])
    ranges = np.maximum(2, np.maximum(abs(close + 1 - before), abs(close - 1 - before)))
    mean_range = ranges[-26:].mean()
    right, twice = (close[-1] - close[-13]) / mean_range, (close[-1] - 2 * close[-13]) / mean_range
    print(f"{name}, from {close[-13]:g} to {close[-1]:g}: {seen:.4f}, by the formula {right:.4f}")
    same &= bool(np.isclose(seen, twice) and np.sign(right) == sign)
    same &= rate != 0 or bool(np.isclose(seen, -50))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the old price is subtracted twice")
PYTHON
