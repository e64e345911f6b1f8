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
from .plan import Candidate, Plan
from .specs import (
    LAYOUTS,
    ConvolutionSpec,
    FilterSpec,
    TensorSpec,
    layouts_of,
    nearest_layout,
    packed_strides,
)

__all__ = [
    "CONV_DTYPES",
    "LAYOUTS",
    "MODES",
    "ROLES",
    "Candidate",
    "ConvProblem",
    "ConvolutionSpec",
    "FilterSpec",
    "Plan",
    "TensorSpec",
    "choice",
    "conv_output_shape",
    "conv_problem",
    "conv_transpose_shape",
    "layouts_of",
    "nearest_layout",
    "packed_strides",
    "pad_pairs",
    "per_axis",
    "resolve_precision",
]
