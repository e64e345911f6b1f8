"""What is to be computed, as values: specs, problems, the rules of shapes, and rows of candidates.

Everything here is immutable, hashable and printable, and knows neither a library nor a device. A problem is
at once the validated request, the cache key, the repr in an error, and what tests work on without a GPU.
"""

from .arguments import choice, per_axis
from .conv import (
    CONV_DTYPES,
    MODES,
    ROLES,
    ConvProblem,
    conv_output_shape,
    conv_problem,
    conv_transpose_shape,
    pad_pairs,
    resolve_precision,
)
from .fused import ACTIVATIONS, FusedConv, fused_problem
from .plan import Candidate, Layer, Plan, Problem, Stage, packed_of, tensors_of
from .request import ALGORITHMS, POLICIES, Named, Request, named_algorithm, request, unfit
from .specs import (
    ALIGNMENT,
    LAYOUTS,
    ActivationSpec,
    ConvolutionSpec,
    FilterSpec,
    LRNSpec,
    OpTensorSpec,
    PoolingSpec,
    ReduceSpec,
    SpatialTransformerSpec,
    TensorSpec,
    layouts_of,
    nearest_layout,
    packed_strides,
)

__all__ = [
    "ACTIVATIONS",
    "ALGORITHMS",
    "ALIGNMENT",
    "CONV_DTYPES",
    "LAYOUTS",
    "MODES",
    "POLICIES",
    "ROLES",
    "ActivationSpec",
    "Candidate",
    "ConvProblem",
    "ConvolutionSpec",
    "FilterSpec",
    "FusedConv",
    "LRNSpec",
    "Layer",
    "Named",
    "OpTensorSpec",
    "Plan",
    "PoolingSpec",
    "Problem",
    "ReduceSpec",
    "Request",
    "SpatialTransformerSpec",
    "Stage",
    "TensorSpec",
    "choice",
    "conv_output_shape",
    "conv_problem",
    "conv_transpose_shape",
    "fused_problem",
    "layouts_of",
    "named_algorithm",
    "nearest_layout",
    "packed_of",
    "packed_strides",
    "pad_pairs",
    "per_axis",
    "request",
    "resolve_precision",
    "tensors_of",
    "unfit",
]
