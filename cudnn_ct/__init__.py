"""cuDNN 9 from Python with nothing to compile.

``import cudnn_ct as ct`` opens no library and needs no GPU; everything below is loaded when it is first used.

Arrays        ``asarray  empty  zeros  full  DeviceArray``
Operations    ``conv  conv_backward_data  conv_backward_filter  conv_backward_bias  conv_transpose
              conv_bias_activation  conv_output_shape  conv_transpose_shape
              pool  pool_backward  pool_output_shape  softmax  softmax_backward
              batch_norm_training  batch_norm_backward  batch_norm_overflowed
              batch_norm_inference  batch_norm_inference_backward
              activation  activation_backward  lrn  lrn_backward
              affine_grid  affine_grid_backward  grid_sample  grid_sample_backward
              spatial_transformer  spatial_transformer_backward
              dropout  dropout_backward  DropoutState  RNN  ctc_loss
              add  op_tensor  scale  fill  transform  reduce``
Algorithms    ``conv_algorithms  conv_plan  conv_bias_activation_plan  export_choices  import_choices``
Where         ``use  synchronize  empty_cache  available``
Library       ``version  library_info  raw``
Descriptors   ``TensorDescriptor  FilterDescriptor  ConvolutionDescriptor  ActivationDescriptor
              PoolingDescriptor  LRNDescriptor  OpTensorDescriptor  ReduceDescriptor
              SpatialTransformerDescriptor  CTCLossDescriptor``, each of a ``...Spec``
Settings      ``config``
Reference     ``reference``: the same operations in NumPy
Theano        ``dnn``: the names of its ``dnn`` module
Errors        ``CudnnError`` and its subclasses, ``CudnnWarning``
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import dnn as dnn
    from . import reference as reference
    from ._config import config as config
    from ._info import library_info as library_info
    from ._lib import version as version
    from ._raw import raw as raw
    from .array import DeviceArray as DeviceArray
    from .array_creation import asarray as asarray
    from .array_creation import empty as empty
    from .array_creation import full as full
    from .array_creation import zeros as zeros
    from .autotune.store import export_choices as export_choices
    from .autotune.store import import_choices as import_choices
    from .context import available as available
    from .context import empty_cache as empty_cache
    from .context import synchronize as synchronize
    from .context import use as use
    from .descriptors import ActivationDescriptor as ActivationDescriptor
    from .descriptors import ConvolutionDescriptor as ConvolutionDescriptor
    from .descriptors import CTCLossDescriptor as CTCLossDescriptor
    from .descriptors import FilterDescriptor as FilterDescriptor
    from .descriptors import LRNDescriptor as LRNDescriptor
    from .descriptors import OpTensorDescriptor as OpTensorDescriptor
    from .descriptors import PoolingDescriptor as PoolingDescriptor
    from .descriptors import ReduceDescriptor as ReduceDescriptor
    from .descriptors import SpatialTransformerDescriptor as SpatialTransformerDescriptor
    from .descriptors import TensorDescriptor as TensorDescriptor
    from .errors import *  # noqa: F403
    from .ops.activation import activation as activation
    from .ops.activation import activation_backward as activation_backward
    from .ops.conv.algorithms import conv_algorithms as conv_algorithms
    from .ops.conv.algorithms import conv_bias_activation_plan as conv_bias_activation_plan
    from .ops.conv.algorithms import conv_plan as conv_plan
    from .ops.conv.conv import conv as conv
    from .ops.conv.conv import conv_backward_bias as conv_backward_bias
    from .ops.conv.conv import conv_backward_data as conv_backward_data
    from .ops.conv.conv import conv_backward_filter as conv_backward_filter
    from .ops.conv.conv import conv_transpose as conv_transpose
    from .ops.conv.fused import conv_bias_activation as conv_bias_activation
    from .ops.ctc import ctc_loss as ctc_loss
    from .ops.dropout import Dropout as Dropout
    from .ops.dropout import DropoutMask as DropoutMask
    from .ops.dropout import DropoutState as DropoutState
    from .ops.dropout import dropout as dropout
    from .ops.dropout import dropout_backward as dropout_backward
    from .ops.lrn import lrn as lrn
    from .ops.lrn import lrn_backward as lrn_backward
    from .ops.norm.norm import batch_norm_backward as batch_norm_backward
    from .ops.norm.norm import batch_norm_inference as batch_norm_inference
    from .ops.norm.norm import batch_norm_inference_backward as batch_norm_inference_backward
    from .ops.norm.norm import batch_norm_overflowed as batch_norm_overflowed
    from .ops.norm.norm import batch_norm_training as batch_norm_training
    from .ops.pooling import pool as pool
    from .ops.pooling import pool_backward as pool_backward
    from .ops.reduce.reduce import reduce as reduce
    from .ops.rnn.rnn import RNN as RNN
    from .ops.rnn.rnn import RNNDataGradients as RNNDataGradients
    from .ops.rnn.rnn import RNNForward as RNNForward
    from .ops.rnn.rnn import RNNReserve as RNNReserve
    from .ops.softmax import softmax as softmax
    from .ops.softmax import softmax_backward as softmax_backward
    from .ops.spatial import affine_grid as affine_grid
    from .ops.spatial import affine_grid_backward as affine_grid_backward
    from .ops.spatial import grid_sample as grid_sample
    from .ops.spatial import grid_sample_backward as grid_sample_backward
    from .ops.spatial import spatial_transformer as spatial_transformer
    from .ops.spatial import spatial_transformer_backward as spatial_transformer_backward
    from .ops.tensor import add as add
    from .ops.tensor import fill as fill
    from .ops.tensor import op_tensor as op_tensor
    from .ops.tensor import scale as scale
    from .ops.tensor import transform as transform
    from .plans.base import Candidate as Candidate
    from .shapes.conv import conv_output_shape as conv_output_shape
    from .shapes.conv import conv_transpose_shape as conv_transpose_shape
    from .shapes.pooling import pool_output_shape as pool_output_shape
    from .shapes.specs import ActivationSpec as ActivationSpec
    from .shapes.specs import ConvolutionSpec as ConvolutionSpec
    from .shapes.specs import CTCLossSpec as CTCLossSpec
    from .shapes.specs import FilterSpec as FilterSpec
    from .shapes.specs import LRNSpec as LRNSpec
    from .shapes.specs import OpTensorSpec as OpTensorSpec
    from .shapes.specs import PoolingSpec as PoolingSpec
    from .shapes.specs import ReduceSpec as ReduceSpec
    from .shapes.specs import SpatialTransformerSpec as SpatialTransformerSpec
    from .shapes.specs import TensorSpec as TensorSpec

__version__ = "0.1.0"

_WHERE = {
    "_config": ("config",),
    "_info": ("library_info",),
    "_lib": ("version",),
    "_raw": ("raw",),
    "array": ("DeviceArray",),
    "array_creation": ("asarray", "empty", "full", "zeros"),
    "autotune.store": ("export_choices", "import_choices"),
    "context": ("available", "empty_cache", "synchronize", "use"),
    "descriptors": (
        "ActivationDescriptor",
        "CTCLossDescriptor",
        "ConvolutionDescriptor",
        "FilterDescriptor",
        "LRNDescriptor",
        "OpTensorDescriptor",
        "PoolingDescriptor",
        "ReduceDescriptor",
        "SpatialTransformerDescriptor",
        "TensorDescriptor",
    ),
    "errors": (
        "AllocationError",
        "BadParamError",
        "CudnnError",
        "CudnnWarning",
        "ExecutionFailedError",
        "InternalError",
        "LibraryLoadError",
        "LibraryNotFoundError",
        "NotInitializedError",
        "NotSupportedError",
        "VersionMismatchError",
    ),
    "ops.activation": ("activation", "activation_backward"),
    "ops.conv.algorithms": ("conv_algorithms", "conv_bias_activation_plan", "conv_plan"),
    "ops.conv.conv": (
        "conv",
        "conv_backward_bias",
        "conv_backward_data",
        "conv_backward_filter",
        "conv_transpose",
    ),
    "ops.conv.fused": ("conv_bias_activation",),
    "ops.ctc": ("ctc_loss",),
    "ops.dropout": ("Dropout", "DropoutMask", "DropoutState", "dropout", "dropout_backward"),
    "ops.lrn": ("lrn", "lrn_backward"),
    "ops.norm.norm": (
        "batch_norm_backward",
        "batch_norm_inference",
        "batch_norm_inference_backward",
        "batch_norm_overflowed",
        "batch_norm_training",
    ),
    "ops.pooling": ("pool", "pool_backward"),
    "ops.reduce.reduce": ("reduce",),
    "ops.rnn.rnn": ("RNN", "RNNDataGradients", "RNNForward", "RNNReserve"),
    "ops.softmax": ("softmax", "softmax_backward"),
    "ops.spatial": (
        "affine_grid",
        "affine_grid_backward",
        "grid_sample",
        "grid_sample_backward",
        "spatial_transformer",
        "spatial_transformer_backward",
    ),
    "ops.tensor": ("add", "fill", "op_tensor", "scale", "transform"),
    "plans.base": ("Candidate",),
    "shapes.conv": ("conv_output_shape", "conv_transpose_shape"),
    "shapes.pooling": ("pool_output_shape",),
    "shapes.specs": (
        "ActivationSpec",
        "CTCLossSpec",
        "ConvolutionSpec",
        "FilterSpec",
        "LRNSpec",
        "OpTensorSpec",
        "PoolingSpec",
        "ReduceSpec",
        "SpatialTransformerSpec",
        "TensorSpec",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

_MODULES = ("dnn", "reference")

__all__ = sorted([*_MODULE_OF, *_MODULES])


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({"__doc__", "__version__", *__all__})
