"""The table of all kinds of operations in a graph."""

from __future__ import annotations

from .matrices import ATTENTION, MATRICES, NORMS
from .pointwise import POINTWISE
from .rules import Kind
from .windows import MOVING, WINDOWS

KINDS: dict[str, Kind] = {**POINTWISE, **MATRICES, **WINDOWS, **NORMS, **MOVING, **ATTENTION}
