"""The examples of docstrings, and the means to run them.

Examples are lines that a user types, with ``ct`` and ``np`` imported. If they need a device, they run on the
fakes and on a GPU.
"""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil
import re
from typing import Any

import numpy as np

import cudnn_ct as ct

# The modules whose examples need no device; they run with the names of their module.
_PARTS = ("shapes", "reference", "dtypes", "_config", "dnn.", "graph.")
WITHOUT_DEVICE = tuple(f"cudnn_ct.{part}" for part in _PARTS)

DOORS = ("cudnn_ct.torch", "cudnn_ct.jax")  # they need other libraries, and have tests of their pages

_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
_NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")


def all_examples(*, device: bool = True) -> list[doctest.DocTest]:
    """Return the docstrings with examples, of all modules that need a device or of all others."""
    found = (module.name for module in pkgutil.walk_packages(ct.__path__, "cudnn_ct."))
    names = [name for name in found if not name.startswith(DOORS)]
    chosen = [name for name in names if name.startswith(WITHOUT_DEVICE) != device and "__main__" not in name]
    finder = doctest.DocTestFinder()
    tests = [test for name in chosen for test in finder.find(importlib.import_module(name))]
    return [test for test in tests if test.examples]


def run(test: doctest.DocTest, names: dict[str, Any] | None = None) -> None:
    """Run the examples of a docstring; raise the report if one fails."""
    report: list[str] = []
    test.globs = {"ct": ct, "np": np, **(names or {})}
    runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=_FLAGS)
    result = runner.run(test, out=report.append, clear_globs=True)
    assert not result.failed, "".join(report)


class Checker(doctest.OutputChecker):
    """Accept decimals that are equal to a thousandth, because the last bits differ between devices."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Compare what was printed."""
        if super().check_output(want, got, optionflags):
            return True
        ours, theirs = (_NUMBER.findall(text) for text in (want, got))
        near = len(ours) == len(theirs) and all(
            math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-3)
            for a, b in zip(ours, theirs, strict=True)
        )
        return near and "".join(_NUMBER.sub("#", want).split()) == "".join(_NUMBER.sub("#", got).split())
