"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""

from .activation import activation
from .chain import ChainPlan, Step
from .family import candidates, plan
from .fused import EpiloguePlan
from .plans import BiasGradientPlan, PackedPlan, ScalePlan, behind, transform
from .pooling import pooling
from .reduction import reduction, wide_reduction
from .softmax import softmax
from .tensor import (
    conversion,
    copying,
    filling,
    op_tensor,
    scaling,
    scaling_by_op_tensor,
    transformation,
)

__all__ = [
    "BiasGradientPlan",
    "ChainPlan",
    "EpiloguePlan",
    "PackedPlan",
    "ScalePlan",
    "Step",
    "activation",
    "behind",
    "candidates",
    "conversion",
    "copying",
    "filling",
    "op_tensor",
    "plan",
    "pooling",
    "reduction",
    "scaling",
    "scaling_by_op_tensor",
    "softmax",
    "transform",
    "transformation",
    "wide_reduction",
]
