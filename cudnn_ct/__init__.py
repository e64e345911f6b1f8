"""cuDNN 9 from Python with nothing to compile.

``import cudnn_ct as ct`` opens no library and needs no GPU: each name is imported at its first use.

The operations are functions such as :func:`conv`, :func:`pool` and :func:`softmax`, each with its gradients,
and the class :class:`RNN`. They take arrays of any GPU library and return :class:`DeviceArray`. ``reference``
has the same operations in NumPy, ``raw`` has cuDNN's own functions, and ``dnn`` has the names of Theano's
module. ``dir(cudnn_ct)`` lists all names.
"""

from importlib import import_module
from typing import Any

from cudnn_doctor import __version__ as __version__

# The public names by the module that defines them. `python tools/stub.py --write` makes the stub for type
# checkers, `__init__.pyi`, from this table.
_PUBLIC = {
    "_config": "config",
    "_info": "LibraryFile LibraryInfo library_info preload",
    "_lib": "version",
    "_raw": "raw",
    "array": "DeviceArray",
    "array_creation": "asarray empty full zeros",
    "autotune.measurement": "Algorithms",
    "autotune.store": "export_algo_cache import_algo_cache",
    "availability": "Availability available",
    "captures.function": "CapturedFunction capture",
    "context": "empty_cache synchronize use",
    "cuda.stream": "Stream",
    "descriptors": (
        "ActivationDescriptor CTCLossDescriptor ConvolutionDescriptor FilterDescriptor "
        "LRNDescriptor OpTensorDescriptor PoolingDescriptor ReduceDescriptor "
        "SpatialTransformerDescriptor TensorDescriptor"
    ),
    "errors": (
        "AllocationError BadParamError CudnnError CudnnWarning ExecutionFailedError InternalError "
        "Explanation LibraryLoadError LibraryNotFoundError NotInitializedError NotSupportedError Reason "
        "VersionMismatchError"
    ),
    "explanations": "PlanDescription explain last_plan",
    "graph.exchange": "export_plans import_plans record_plans",
    "graph.recording": "RecordedPlans",
    "ops.activation": "activation activation_backward",
    "ops.attention.attention": "attention attention_backward clear_padding",
    "ops.attention.scaled": "scaled_attention",
    "ops.causal_conv": "b2b_causal_conv1d b2b_causal_conv1d_backward causal_conv1d causal_conv1d_backward",
    "ops.conv.algorithms": "ConvPlan conv_algorithms conv_bias_activation_plan conv_plan",
    "ops.conv.conv": "conv conv_backward_bias conv_backward_data conv_backward_filter conv_transpose",
    "ops.conv.fused": "conv_bias_activation",
    "ops.conv.scaled": "conv_scale_bias_activation scaled_conv",
    "ops.conv.training": (
        "batch_norm_finalize conv_backward_data_relu_batch_norm conv_backward_filter_scale_bias_relu "
        "conv_batch_norm_statistics"
    ),
    "ops.ctc.ctc": "ctc_loss",
    "ops.dropout": "DropoutMask DropoutResult DropoutState dropout dropout_backward",
    "ops.fft_causal_conv": "fft_causal_conv1d fft_causal_conv1d_backward",
    "ops.gnn.aggregate": "graph_aggregate graph_aggregate_backward",
    "ops.gnn.attention": "graph_attention graph_attention_backward",
    "ops.graph.built": "BuiltGraph",
    "ops.graph.graph": "Graph",
    "ops.graph.tensors": "GraphTensor",
    "ops.lrn": "lrn lrn_backward",
    "ops.matmul.gradient": "matmul_backward",
    "ops.matmul.matmul": "matmul scaled_matmul",
    "ops.norm.group_norm": "group_norm group_norm_backward",
    "ops.norm.instance_norm": "instance_norm instance_norm_backward",
    "ops.norm.layer_norm": (
        "ada_layer_norm ada_layer_norm_backward layer_norm layer_norm_backward rms_norm rms_norm_backward"
    ),
    "ops.norm.norm": (
        "batch_norm_backward batch_norm_inference batch_norm_inference_backward "
        "batch_norm_overflow_detected batch_norm_training"
    ),
    "ops.pooling": "pool pool_backward",
    "ops.reduce.reduce": "reduce reduce_with_indices",
    "ops.rnn.gradients": "RNNDataGradients RNNReserve",
    "ops.rnn.rnn": "RNN RNNForward",
    "ops.softmax": "softmax softmax_backward",
    "ops.spatial.spatial": (
        "affine_grid affine_grid_backward grid_sample grid_sample_backward spatial_transformer "
        "spatial_transformer_backward"
    ),
    "ops.tensor": "add fill op_tensor scale transform",
    "plans.base": "Candidate",
    "raw_memory": "from_pointer",
    "shapes.attention": "AttentionGradients AttentionResult ScaledAttentionResult",
    "shapes.causal_conv": (
        "B2BCausalConvGradients B2BCausalConvResult CausalConvGradients FFTCausalConvGradients"
    ),
    "shapes.conv": "conv_output_shape conv_transpose_output_shape",
    "shapes.ctc": "CTCLoss",
    "shapes.fused": "ScaledConvResult",
    "shapes.gnn": (
        "GraphAggregateGradients GraphAggregateResult GraphAttentionGradients GraphAttentionResult"
    ),
    "shapes.layer_norm": "LayerNormGradients LayerNormResult RMSNormGradients RMSNormResult",
    "shapes.layers": "pool_output_shape",
    "shapes.matmul": "MatmulGradients ScaledMatmulResult",
    "shapes.norm": "BatchNormGradients BatchNormResult",
    "shapes.rnn": "RNNSpec",
    "shapes.sequences": "RNNGradients RNNResult",
    "shapes.spatial": "GridSampleGradients SpatialTransformerGradients",
    "shapes.specs": (
        "ActivationSpec CTCLossSpec ConvolutionSpec FilterSpec LRNSpec OpTensorSpec PoolingSpec "
        "ReduceSpec SpatialTransformerSpec TensorSpec"
    ),
    "shapes.tensor": "IndexedReduction",
    "shapes.training_fusions": "BatchNormFinalizeResult ConvBatchNormGradients ConvStatisticsResult",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}
_MODULES = ("dnn", "reference")

__all__ = sorted([*_MODULE_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name.startswith("_"):  # `from .. import _module` in the doctor, which older versions of Python run
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULE_OF:
        hint = import_module("._hints", __name__).attribute_hint(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name, obj=None)
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({"__doc__", "__version__", *__all__})
