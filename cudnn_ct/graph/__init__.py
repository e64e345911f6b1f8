"""cuDNN's graph API, for any operation: graphs, engines for them, and plans that run them.

A graph of nodes and tensors is built into a native graph (`operations`), engines and execution plans
(`engines`, `plan`). All are backend descriptors (`backend`, `attributes`), for a device that exists or is
only described (`offline`). The graphs of an operation are in its modules of `ops`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The documented names, also those of convolutions in `ops`. Modules of the package import from the modules
# that define them.
_MODULE_OF = {
    "Planner": "offline",
    "candidates": ".ops.conv.graph",
    "plan": ".ops.conv.graph",
    "preferred": ".ops.conv.graph",
    "ranked_too_high": ".ops.conv.errata",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
