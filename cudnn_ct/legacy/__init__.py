"""cuDNN's legacy calls as a family: one C function for each operation, with a list of algorithms.

``candidates`` and ``plan`` are what the levels above know (`family`). A problem becomes descriptors
(`native`), and a plan holds them (`plans`, `fused`), so a run is one C call, or a few.
"""

from .activation import activation
from .chain import ChainPlan, Step
from .copies import copying
from .ctc import ctc_loss, ctc_loss_of_host_labels
from .dropout import DropoutDescriptor, dropout, mask_size, states_size
from .family import candidates, plan
from .fold import LARGEST
from .fused import EpiloguePlan
from .lrn import lrn
from .native import packings
from .norm_ways import NORM_GRADIENT_WAYS, NORM_INFERENCE_WAYS, NORM_TRAINING_WAYS
from .plans import PackedPlan, ScaledPlan, ScalePlan
from .pooling import gradient_in_c_order, padded_pooling, pooling, spread_gradient
from .reduction import GUARDS, ReducePlan, guard, reduction, wide_reduction
from .rnn import RNNFamily, rnn_rows
from .rnn_plans import IdleRNNPlan, RNNPass, RNNPlan
from .scratch import room_of
from .slices import SlicedPlan, gapless, joined, sliced
from .softmax import softmax, softmax_of_rows
from .spatial import GridPlan, SamplePlan
from .sums import quick_sum, summed
from .tensor import (
    OpTensorPlan,
    conversion,
    filling,
    op_tensor,
    scaling,
    scaling_by_op_tensor,
    transformation,
)
from .widen import on_float32

__all__ = [
    "GUARDS",
    "LARGEST",
    "NORM_GRADIENT_WAYS",
    "NORM_INFERENCE_WAYS",
    "NORM_TRAINING_WAYS",
    "ChainPlan",
    "DropoutDescriptor",
    "EpiloguePlan",
    "GridPlan",
    "IdleRNNPlan",
    "OpTensorPlan",
    "PackedPlan",
    "RNNFamily",
    "RNNPass",
    "RNNPlan",
    "ReducePlan",
    "SamplePlan",
    "ScalePlan",
    "ScaledPlan",
    "SlicedPlan",
    "Step",
    "activation",
    "candidates",
    "conversion",
    "copying",
    "ctc_loss",
    "ctc_loss_of_host_labels",
    "dropout",
    "filling",
    "gapless",
    "gradient_in_c_order",
    "guard",
    "joined",
    "lrn",
    "mask_size",
    "on_float32",
    "op_tensor",
    "packings",
    "padded_pooling",
    "plan",
    "pooling",
    "quick_sum",
    "reduction",
    "rnn_rows",
    "room_of",
    "scaling",
    "scaling_by_op_tensor",
    "sliced",
    "softmax",
    "softmax_of_rows",
    "spread_gradient",
    "states_size",
    "summed",
    "transformation",
    "wide_reduction",
]
