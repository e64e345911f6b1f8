"""The meaning of every operation in NumPy, computed in float64 and rounded once.

Names, operands and mathematical parameters are those of the package's operations. Parameters that matter
only on a device (algorithm, precision, stream) do not exist.
"""

import numpy as np

from ..shapes.conv import conv_output_shape as conv_output_shape
from ..shapes.conv import conv_transpose_output_shape as conv_transpose_output_shape
from ..shapes.pooling import pool_output_shape as pool_output_shape
from .attention import attention as attention
from .attention import attention_backward as attention_backward
from .attention import clear_padding as clear_padding
from .attention import scaled_attention as scaled_attention
from .b2b_causal_conv import b2b_causal_conv1d as b2b_causal_conv1d
from .b2b_causal_conv import b2b_causal_conv1d_backward as b2b_causal_conv1d_backward
from .causal_conv import causal_conv1d as causal_conv1d
from .causal_conv import causal_conv1d_backward as causal_conv1d_backward
from .conv import conv as conv
from .conv import conv_backward_bias as conv_backward_bias
from .conv import conv_backward_data as conv_backward_data
from .conv import conv_backward_filter as conv_backward_filter
from .conv import conv_bias_activation as conv_bias_activation
from .conv import conv_transpose as conv_transpose
from .conv import pool as pool
from .conv import pool_backward as pool_backward
from .ctc import ctc_loss as ctc_loss
from .fft_causal_conv import fft_causal_conv1d as fft_causal_conv1d
from .fft_causal_conv import fft_causal_conv1d_backward as fft_causal_conv1d_backward
from .fused import batch_norm_finalize as batch_norm_finalize
from .fused import conv_backward_data_relu_batch_norm as conv_backward_data_relu_batch_norm
from .fused import conv_backward_filter_scale_bias_relu as conv_backward_filter_scale_bias_relu
from .fused import conv_batch_norm_statistics as conv_batch_norm_statistics
from .fused import conv_scale_bias_activation as conv_scale_bias_activation
from .fused import matmul as matmul
from .fused import matmul_backward as matmul_backward
from .fused import scaled_conv as scaled_conv
from .fused import scaled_matmul as scaled_matmul
from .gnn_aggregate import graph_aggregate as graph_aggregate
from .gnn_aggregate import graph_aggregate_backward as graph_aggregate_backward
from .gnn_attention import graph_attention as graph_attention
from .gnn_attention import graph_attention_backward as graph_attention_backward
from .graph_nodes import graph as graph
from .layer_norm import ada_layer_norm as ada_layer_norm
from .layer_norm import ada_layer_norm_backward as ada_layer_norm_backward
from .layer_norm import layer_norm as layer_norm
from .layer_norm import layer_norm_backward as layer_norm_backward
from .layer_norm import rms_norm as rms_norm
from .layer_norm import rms_norm_backward as rms_norm_backward
from .layers import activation as activation
from .layers import activation_backward as activation_backward
from .layers import lrn as lrn
from .layers import lrn_backward as lrn_backward
from .layers import softmax as softmax
from .layers import softmax_backward as softmax_backward
from .norm import batch_norm_backward as batch_norm_backward
from .norm import batch_norm_inference as batch_norm_inference
from .norm import batch_norm_inference_backward as batch_norm_inference_backward
from .norm import batch_norm_training as batch_norm_training
from .norm import group_norm as group_norm
from .norm import group_norm_backward as group_norm_backward
from .norm import instance_norm as instance_norm
from .norm import instance_norm_backward as instance_norm_backward
from .spatial import affine_grid as affine_grid
from .spatial import affine_grid_backward as affine_grid_backward
from .spatial import grid_sample as grid_sample
from .spatial import grid_sample_backward as grid_sample_backward
from .spatial import spatial_transformer as spatial_transformer
from .spatial import spatial_transformer_backward as spatial_transformer_backward
from .tensor import add as add
from .tensor import fill as fill
from .tensor import op_tensor as op_tensor
from .tensor import reduce as reduce
from .tensor import reduce_with_indices as reduce_with_indices
from .tensor import scale as scale
from .tensor import transform as transform

# The functions imported above; submodules are not callable. `graph` evaluates built graphs: no operation has
# its name.
_FUNCTIONS = {name: value for name, value in globals().items() if callable(value) and name[0] != "_"}
__all__ = [name for name in _FUNCTIONS if name != "graph"]

# Infinities and NaN are valid data, as are the means of empty batches, and cuDNN gives no warnings either.
globals().update(
    {
        name: np.errstate(all="ignore")(function)
        for name, function in _FUNCTIONS.items()
        if function.__module__.startswith(__name__)
    }
)
