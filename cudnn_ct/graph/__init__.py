"""cuDNN's graph API as a family: engines for a problem, best first, and plans that run them.

``candidates`` and ``plan`` are what the levels above know of convolution (`family`), and a function for each
operation that has a graph. Below them, from the top down: a problem becomes a graph of nodes and tensors
(`conv`, `fused`, `convert`, `activation`, `reduction`), a native graph (`operations`), engines and execution
plans (`engines`, `plan`), all of them backend descriptors (`backend`, `attributes`), for a device that is
there or is only described (`device`).
"""

from .activation import activation
from .convert import conversion
from .device import Planner
from .family import candidates, plan, preferred
from .findings import ranked_too_high
from .reduction import reduction

__all__ = [
    "Planner",
    "activation",
    "candidates",
    "conversion",
    "plan",
    "preferred",
    "ranked_too_high",
    "reduction",
]
