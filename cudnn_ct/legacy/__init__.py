"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""

from .family import candidates, plan
from .fused import EpiloguePlan
from .norm_ways import NORM_GRADIENT_WAYS, NORM_INFERENCE_WAYS, NORM_TRAINING_WAYS
from .plans import BiasGradientPlan, PackedPlan, ScalePlan, behind, transform
from .pooling import pooling

__all__ = [
    "NORM_GRADIENT_WAYS",
    "NORM_INFERENCE_WAYS",
    "NORM_TRAINING_WAYS",
    "BiasGradientPlan",
    "EpiloguePlan",
    "PackedPlan",
    "ScalePlan",
    "behind",
    "candidates",
    "plan",
    "pooling",
    "transform",
]
