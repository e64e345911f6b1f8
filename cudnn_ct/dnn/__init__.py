"""The names of Theano's ``dnn`` module over the operations of this package, for people who come from there.

Here everything runs at once, on arrays on the device: functions and operations take arrays and return arrays,
and gradients are operations of their own. ``docs/migrating-from-theano.md`` says for each name what is the
same. The flags are ``ct.config.dnn``.

Convolution    ``dnn_conv  dnn_conv3d  dnn_gradweight  dnn_gradweight3d  dnn_gradinput  dnn_gradinput3d
               GpuDnnConvDesc  GpuDnnConv  GpuDnnConvGradW  GpuDnnConvGradI
               GpuDnnConv3d  GpuDnnConv3dGradW  GpuDnnConv3dGradI``
Pooling        ``dnn_pool  GpuDnnPoolDesc  GpuDnnPool  GpuDnnPoolGrad``
Batches        ``dnn_batch_normalization_train  dnn_batch_normalization_test
               GpuDnnBatchNorm  GpuDnnBatchNormInference  GpuDnnBatchNormGrad``
Networks       ``RNNBlock  GpuDnnRNNOp  GpuDnnRNNGradInputs  GpuDnnRNNGradWeights``
Transformers   ``dnn_spatialtf  GpuDnnTransformerGrid  GpuDnnTransformerSampler
               GpuDnnTransformerGradI  GpuDnnTransformerGradT``
Other layers   ``GpuDnnSoftmax  GpuDnnSoftmaxGrad  GpuDnnReduction  dropout  GpuDnnDropoutOp``
Library        ``version  dnn_present  dnn_available``
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

# Names of the old module that mean nothing here, and what there is instead.
LEFT_OUT = {
    "CDataMaker": "it belongs to Theano's code generation",
    "DnnBase": "there is nothing to compile; cudnn_ct.raw has the C functions",
    "DnnVersion": "version() tells the version",
    "GpuDnnBatchNormBase": "GpuDnnBatchNorm, GpuDnnBatchNormInference and GpuDnnBatchNormGrad have no base",
    "GpuDnnPoolBase": "GpuDnnPool and GpuDnnPoolGrad have no base",
    "GpuDnnSoftmaxBase": "GpuDnnSoftmax and GpuDnnSoftmaxGrad have no base",
    "MakerCDataType": "it belongs to Theano's code generation",
}


def __getattr__(name: str) -> Any:
    why = LEFT_OUT.get(name)
    told = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(told if why is None else f"{told}, unlike Theano's dnn: {why}")
