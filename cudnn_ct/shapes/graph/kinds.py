"""The table of all kinds of operations in a graph."""

from __future__ import annotations

from .matrices import ATTENTION, MATRICES, NORMS
from .moving import MOVING
from .pointwise import POINTWISE
from .rules import Kind
from .windows import WINDOWS

KINDS: dict[str, Kind] = {**POINTWISE, **MATRICES, **WINDOWS, **NORMS, **MOVING, **ATTENTION}
