"""Operations: arrays on the device in, arrays on the device out; one module for each family."""

from .algorithms import conv_algorithms, conv_bias_activation_plan, conv_plan
from .conv import (
    conv,
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_output_shape,
    conv_transpose,
    conv_transpose_shape,
)
from .fused import conv_bias_activation
from .norm import batch_norm_backward, batch_norm_inference, batch_norm_overflowed, batch_norm_training
from .pooling import pool, pool_backward, pool_output_shape

__all__ = [
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_overflowed",
    "batch_norm_training",
    "conv",
    "conv_algorithms",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation",
    "conv_bias_activation_plan",
    "conv_output_shape",
    "conv_plan",
    "conv_transpose",
    "conv_transpose_shape",
    "pool",
    "pool_backward",
    "pool_output_shape",
]
