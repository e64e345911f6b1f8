"""Theano's ``dnn`` module over the operations of this package, for programs that were written for it.

Functions and operations take device arrays, run immediately and return device arrays. Gradients are separate
operations. ``docs/migrating-from-theano.md`` describes the parameters and the differences from Theano. The
flags are ``ct.config.dnn``.
"""

from typing import Any

from .._config import config
from ._conv import GpuDnnConvDesc
from .availability import dnn_available, dnn_present, version
from .conv import (
    dnn_conv,
    dnn_conv3d,
    dnn_gradinput,
    dnn_gradinput3d,
    dnn_gradweight,
    dnn_gradweight3d,
)
from .conv_ops import (
    GpuDnnConv,
    GpuDnnConv3d,
    GpuDnnConv3dGradI,
    GpuDnnConv3dGradW,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
)
from .flags import flags_of
from .layers import GpuDnnDropoutOp, GpuDnnReduction, GpuDnnSoftmax, GpuDnnSoftmaxGrad, dropout
from .norm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    dnn_batch_normalization_test,
    dnn_batch_normalization_train,
)
from .pooling import GpuDnnPool, GpuDnnPoolDesc, GpuDnnPoolGrad, dnn_pool
from .rnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp, RNNBlock
from .spatial import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
    dnn_spatialtf,
)

__all__ = [
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "GpuDnnConv",
    "GpuDnnConv3d",
    "GpuDnnConv3dGradI",
    "GpuDnnConv3dGradW",
    "GpuDnnConvDesc",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDnnDropoutOp",
    "GpuDnnPool",
    "GpuDnnPoolDesc",
    "GpuDnnPoolGrad",
    "GpuDnnRNNGradInputs",
    "GpuDnnRNNGradWeights",
    "GpuDnnRNNOp",
    "GpuDnnReduction",
    "GpuDnnSoftmax",
    "GpuDnnSoftmaxGrad",
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "RNNBlock",
    "dnn_available",
    "dnn_batch_normalization_test",
    "dnn_batch_normalization_train",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "dnn_pool",
    "dnn_present",
    "dnn_spatialtf",
    "dropout",
    "version",
]

# The flags for paths must be applied before anything loads cuDNN.
flags_of(config)

# Names of Theano that are not provided, and the reasons.
LEFT_OUT = {
    "CDataMaker": "it belongs to Theano's code generation",
    "DnnBase": "nothing is compiled; cudnn_ct.raw has the C functions",
    "DnnVersion": "version() returns the version",
    "GpuDnnBatchNormBase": "the operations of batch normalization do not share a base",
    "GpuDnnPoolBase": "GpuDnnPool and GpuDnnPoolGrad do not share a base",
    "GpuDnnSoftmaxBase": "GpuDnnSoftmax and GpuDnnSoftmaxGrad do not share a base",
    "MakerCDataType": "it belongs to Theano's code generation",
}


def __getattr__(name: str) -> Any:
    why = LEFT_OUT.get(name)
    text = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(text if why is None else f"{text}, unlike Theano's dnn: {why}")
