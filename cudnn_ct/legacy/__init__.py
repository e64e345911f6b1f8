"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""

from .activation import activation
from .dropout import DropoutDescriptor, dropout, mask_size, states_size
from .family import candidates, plan
from .fused import EpiloguePlan
from .lrn import lrn
from .norm_ways import NORM_GRADIENT_WAYS, NORM_INFERENCE_WAYS, NORM_TRAINING_WAYS
from .plans import BiasGradientPlan, PackedPlan, ScaledPlan, ScalePlan, behind, transform
from .pooling import padded_pooling, pooling
from .softmax import softmax
from .spatial import GridPlan, SamplePlan

__all__ = [
    "NORM_GRADIENT_WAYS",
    "NORM_INFERENCE_WAYS",
    "NORM_TRAINING_WAYS",
    "BiasGradientPlan",
    "DropoutDescriptor",
    "EpiloguePlan",
    "GridPlan",
    "PackedPlan",
    "SamplePlan",
    "ScalePlan",
    "ScaledPlan",
    "activation",
    "behind",
    "candidates",
    "dropout",
    "lrn",
    "mask_size",
    "padded_pooling",
    "plan",
    "pooling",
    "softmax",
    "states_size",
    "transform",
]
