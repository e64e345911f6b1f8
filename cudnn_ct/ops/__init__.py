"""Operations: arrays on the device in, arrays on the device out; one module for each family."""

from .conv import (
    conv,
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_output_shape,
    conv_transpose,
    conv_transpose_shape,
)

__all__ = [
    "conv",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_output_shape",
    "conv_transpose",
    "conv_transpose_shape",
]
