"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""

from .activation import activation
from .chain import ChainPlan, Step
from .ctc import ctc_loss, ctc_loss_of_host_labels
from .dropout import DropoutDescriptor, dropout, mask_size, states_size
from .family import candidates, plan
from .fused import EpiloguePlan
from .lrn import lrn
from .norm_ways import NORM_GRADIENT_WAYS, NORM_INFERENCE_WAYS, NORM_TRAINING_WAYS
from .plans import BiasGradientPlan, PackedPlan, ScaledPlan, ScalePlan, behind, transform
from .pooling import padded_pooling, pooling
from .reduction import reduction, wide_reduction
from .softmax import softmax
from .spatial import GridPlan, SamplePlan
from .tensor import conversion, copying, filling, op_tensor, scaling, scaling_by_op_tensor, transformation
from .widen import on_float32

__all__ = [
    "NORM_GRADIENT_WAYS",
    "NORM_INFERENCE_WAYS",
    "NORM_TRAINING_WAYS",
    "BiasGradientPlan",
    "ChainPlan",
    "DropoutDescriptor",
    "EpiloguePlan",
    "GridPlan",
    "PackedPlan",
    "SamplePlan",
    "ScalePlan",
    "ScaledPlan",
    "Step",
    "activation",
    "behind",
    "candidates",
    "conversion",
    "copying",
    "ctc_loss",
    "ctc_loss_of_host_labels",
    "dropout",
    "filling",
    "lrn",
    "mask_size",
    "on_float32",
    "op_tensor",
    "padded_pooling",
    "plan",
    "pooling",
    "reduction",
    "scaling",
    "scaling_by_op_tensor",
    "softmax",
    "states_size",
    "transform",
    "transformation",
    "wide_reduction",
]
