"""Operations: arrays on the device in, arrays on the device out; one module for each family."""

from .activation import activation, activation_backward
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
from .pooling import pool, pool_backward, pool_output_shape
from .reduction import reduce
from .softmax import softmax, softmax_backward
from .tensor import add, fill, op_tensor, scale, transform

__all__ = [
    "activation",
    "activation_backward",
    "add",
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
    "fill",
    "op_tensor",
    "pool",
    "pool_backward",
    "pool_output_shape",
    "reduce",
    "scale",
    "softmax",
    "softmax_backward",
    "transform",
]
