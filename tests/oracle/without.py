"""Fixes that a run of the oracle takes out, so that its draws find the defects again.

The variable ORACLE_WITHOUT has the names of facts, and MEASUREMENT for the measured determinism, with commas.
Child processes inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from cudnn_ct import facts
from cudnn_ct.certify import certificates

VARIABLE = "ORACLE_WITHOUT"
MEASUREMENT = "measured determinism"


def take_out(more: Collection[str] = ()) -> None:
    """Ignore the facts that the variable names, and ``more``; let each engine pass as deterministic."""
    named = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    facts.ignore([*more, *(name for name in named if name != MEASUREMENT)])
    if MEASUREMENT in named:
        certificates._count_results = lambda *_: (1, certificates.RUNS)
