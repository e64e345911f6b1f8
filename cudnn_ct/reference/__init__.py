"""The meaning of every operation in NumPy, computed in float64 and rounded once.

Names, operands and mathematical parameters are those of the package's operations. Parameters that matter
only on a device (algorithm, precision, stream) do not exist.
"""

from importlib import import_module

# The public names by the module that defines them. `python tools/stub.py --write` makes the stub for type
# checkers, `__init__.pyi`, from this table.
_PUBLIC = {
    ".shapes.conv": "conv_output_shape conv_transpose_output_shape",
    ".shapes.pooling": "pool_output_shape",
    "attention": "attention attention_backward clear_padding scaled_attention",
    "b2b_causal_conv": "b2b_causal_conv1d b2b_causal_conv1d_backward",
    "causal_conv": "causal_conv1d causal_conv1d_backward",
    "conv": (
        "conv conv_backward_bias conv_backward_data conv_backward_filter conv_bias_activation conv_transpose "
        "pool pool_backward"
    ),
    "ctc": "ctc_loss",
    "fft_causal_conv": "fft_causal_conv1d fft_causal_conv1d_backward",
    "fused": (
        "batch_norm_finalize conv_backward_data_relu_batch_norm conv_backward_filter_scale_bias_relu "
        "conv_batch_norm_statistics conv_scale_bias_activation matmul matmul_backward scaled_conv "
        "scaled_matmul"
    ),
    "gnn_aggregate": "graph_aggregate graph_aggregate_backward",
    "gnn_attention": "graph_attention graph_attention_backward",
    "graph_nodes": "graph",
    "layer_norm": (
        "ada_layer_norm ada_layer_norm_backward layer_norm layer_norm_backward rms_norm rms_norm_backward"
    ),
    "layers": "activation activation_backward lrn lrn_backward softmax softmax_backward",
    "norm": (
        "batch_norm_backward batch_norm_inference batch_norm_inference_backward batch_norm_training "
        "group_norm group_norm_backward instance_norm instance_norm_backward"
    ),
    "spatial": (
        "affine_grid affine_grid_backward grid_sample grid_sample_backward spatial_transformer "
        "spatial_transformer_backward"
    ),
    "tensor": "add fill op_tensor reduce reduce_with_indices scale transform",
}
# Some modules have the name of a function, which takes their place after all are imported.
globals().update(
    {
        name: getattr(import_module(f".{module}", __name__), name)
        for module, names in _PUBLIC.items()
        for name in names.split()
    }
)
# `graph` evaluates built graphs: no operation has its name.
__all__ = sorted({*" ".join(_PUBLIC.values()).split()} - {"graph"})
