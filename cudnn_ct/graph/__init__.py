"""cuDNN's graph API as a family: engines for a problem, best first, and plans that run them.

``candidates`` and ``plan`` are what the levels above know (`family`). Below them, from the top down: a
problem becomes a graph of nodes and tensors (`conv`, `fused`, `convert`), a native graph (`operations`),
engines and execution plans (`engines`, `plan`), all of them backend descriptors (`backend`, `attributes`),
for a device that is there or is only described (`device`).
"""

from .convert import conversion
from .device import Planner
from .family import candidates, plan
from .findings import ranked_too_high

__all__ = ["Planner", "candidates", "conversion", "plan", "ranked_too_high"]
