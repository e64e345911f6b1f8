"""The meaning of every operation in NumPy, computed in float64 and rounded once.

Names, operands and mathematical parameters are those of the package's operations. Parameters that matter
only on a device (algorithm, precision, stream) do not exist.
"""

from ..shapes.conv import conv_output_shape, conv_transpose_output_shape
from ..shapes.pooling import pool_output_shape
from .activation import activation, activation_backward
from .conv import conv, conv_backward_bias, conv_backward_data, conv_backward_filter, conv_transpose
from .ctc import ctc_loss
from .fused import conv_bias_activation
from .lrn import lrn, lrn_backward
from .norm import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_inference_backward,
    batch_norm_training,
)
from .pooling import pool, pool_backward
from .reduction import reduce, reduce_with_indices
from .softmax import softmax, softmax_backward
from .spatial import (
    affine_grid,
    affine_grid_backward,
    grid_sample,
    grid_sample_backward,
    spatial_transformer,
    spatial_transformer_backward,
)
from .tensor import add, fill, op_tensor, scale, transform

__all__ = [
    "activation",
    "activation_backward",
    "add",
    "affine_grid",
    "affine_grid_backward",
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
    "batch_norm_training",
    "conv",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation",
    "conv_output_shape",
    "conv_transpose",
    "conv_transpose_output_shape",
    "ctc_loss",
    "fill",
    "grid_sample",
    "grid_sample_backward",
    "lrn",
    "lrn_backward",
    "op_tensor",
    "pool",
    "pool_backward",
    "pool_output_shape",
    "reduce",
    "reduce_with_indices",
    "scale",
    "softmax",
    "softmax_backward",
    "spatial_transformer",
    "spatial_transformer_backward",
    "transform",
]
