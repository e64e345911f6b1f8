"""cuDNN's graph API as a family: engines for a problem, best first, and plans that run them.

``candidates`` and ``plan`` are what the levels above know of convolution (`family`), and a function for each
operation that has a graph. Below them, from the top down: a problem becomes a graph of nodes and tensors
(`conv`, `fused`, `convert`, `activation`, `reduction`), a native graph (`operations`), engines and execution
plans (`engines`, `plan`), all of them backend descriptors (`backend`, `attributes`), for a device that is
there or is only described (`device`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The documented names. Modules of the package import from the modules that define them.
_MODULE_OF = {
    "Planner": "device",
    "candidates": "family",
    "plan": "family",
    "preferred": "family",
    "ranked_too_high": "findings",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
