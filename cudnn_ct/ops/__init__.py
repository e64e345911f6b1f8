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
from .ctc import ctc_loss
from .dropout import Dropout, DropoutMask, DropoutState, dropout, dropout_backward
from .fused import conv_bias_activation
from .lrn import lrn, lrn_backward
from .norm import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_inference_backward,
    batch_norm_overflowed,
    batch_norm_training,
)
from .pooling import pool, pool_backward, pool_output_shape
from .reduction import reduce
from .rnn import RNN, RNNDataGradients, RNNForward, RNNReserve
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
    "RNN",
    "Dropout",
    "DropoutMask",
    "DropoutState",
    "RNNDataGradients",
    "RNNForward",
    "RNNReserve",
    "activation",
    "activation_backward",
    "add",
    "affine_grid",
    "affine_grid_backward",
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
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
    "ctc_loss",
    "dropout",
    "dropout_backward",
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
    "scale",
    "softmax",
    "softmax_backward",
    "spatial_transformer",
    "spatial_transformer_backward",
    "transform",
]
