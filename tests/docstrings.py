"""The examples in docstrings of what needs a device, and what it takes to run them.

They are what a person types, with ``ct`` and ``np`` imported. They run on the fakes, on a GPU, and, where an
operation has a reference, with the reference in its place (:class:`OnReference`).
"""

from __future__ import annotations

import doctest
import importlib
import math
import re
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct import reference

# The modules whose examples need a device: all the others are run by tests/unit/test_doctests.py.
MODULES = (
    "_info",
    "_lib",
    "_raw",
    "autotune.store",
    "array",
    "context",
    "array_creation",
    "descriptors",
    "ops.activation",
    "ops.conv.algorithms",
    "ops.conv.conv",
    "ops.ctc",
    "ops.dropout",
    "ops.conv.fused",
    "ops.lrn",
    "ops.norm.norm",
    "ops.pooling",
    "ops.conv.plan",
    "ops.reduce.reduce",
    "ops.rnn.rnn",
    "ops.softmax",
    "ops.spatial",
    "ops.tensor",
    "testing",
)

_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
_NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")


def examples(module: str) -> list[doctest.DocTest]:
    """What there is to run in a module, each docstring by itself."""
    found = doctest.DocTestFinder().find(importlib.import_module(f"cudnn_ct.{module}"))
    return [test for test in found if test.examples]


def all_examples() -> list[doctest.DocTest]:
    """Those of all modules."""
    return [test for module in MODULES for test in examples(module)]


def run(test: doctest.DocTest, library: Any = ct) -> None:
    """Run the examples of a docstring, with ``library`` as ``ct``; raise with the report where one fails."""
    report: list[str] = []
    test.globs = {"ct": library, "np": np}
    runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=_FLAGS)
    result = runner.run(test, out=report.append, clear_globs=True)
    assert not result.failed, "".join(report)


class Checker(doctest.OutputChecker):
    """Takes decimals that are equal to a thousandth: the last bits are the device's own."""

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


class OnReference:
    """Stands in for the package: arrays are NumPy's, and operations those of ``cudnn_ct.reference``."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(reference, name)
        return lambda *args, **kwargs: _marked(function(*args, **kwargs))

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        """A NumPy array with the method ``numpy`` of those on the device."""
        return _marked(np.asarray(values, dtype))

    def zeros(self, shape: Any) -> Any:
        """The same, of zeros."""
        return _marked(np.zeros(shape, np.float32))


class _Array(np.ndarray):
    def numpy(self) -> Any:
        return np.asarray(self)


def _marked(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.view(_Array)
    return result._make(map(_marked, result)) if isinstance(result, tuple) else result
