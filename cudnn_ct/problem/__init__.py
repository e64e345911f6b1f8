"""What is to be computed, as values: specs, problems, the rules of shapes, and rows of candidates.

Everything here is immutable, hashable and printable, and knows neither a library nor a device. A problem is
at once the validated request, the cache key, the repr in an error, and what tests work on without a GPU.
"""

from .arguments import NAN_CHOICES, choice, number, per_axis, propagates
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
from .operands import FLOATS, check_images, one_dtype, same_shape
from .plan import Candidate, Layer, Plan, Problem, Stage, packed_of, tensors_of
from .pooling import (
    POOLING_MODES,
    PoolGeometry,
    pool_geometry,
    pool_output_shape,
    pooling_dtypes,
    pooling_mode,
)
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
    "FLOATS",
    "LAYOUTS",
    "MODES",
    "NAN_CHOICES",
    "POLICIES",
    "POOLING_MODES",
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
    "PoolGeometry",
    "PoolingSpec",
    "Problem",
    "ReduceSpec",
    "Request",
    "SpatialTransformerSpec",
    "Stage",
    "TensorSpec",
    "check_images",
    "choice",
    "conv_output_shape",
    "conv_problem",
    "conv_transpose_shape",
    "fused_problem",
    "layouts_of",
    "named_algorithm",
    "nearest_layout",
    "number",
    "one_dtype",
    "packed_of",
    "packed_strides",
    "pad_pairs",
    "per_axis",
    "pool_geometry",
    "pool_output_shape",
    "pooling_dtypes",
    "pooling_mode",
    "propagates",
    "request",
    "resolve_precision",
    "same_shape",
    "tensors_of",
    "unfit",
]
