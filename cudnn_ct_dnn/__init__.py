"""Theano's ``dnn`` module over the operations of this package, for programs that were written for it.

Functions and operations take device arrays, run immediately and return device arrays. Gradients are separate
operations. ``docs/migrating-from-theano.md`` describes the parameters and the differences from Theano. The
flags are ``ct.config.dnn``.
"""

from cudnn_ct._config import config as _config

from .availability import dnn_available as dnn_available
from .availability import dnn_present as dnn_present
from .availability import version as version
from .conv import GpuDnnConv as GpuDnnConv
from .conv import GpuDnnConv3d as GpuDnnConv3d
from .conv import GpuDnnConv3dGradI as GpuDnnConv3dGradI
from .conv import GpuDnnConv3dGradW as GpuDnnConv3dGradW
from .conv import GpuDnnConvDesc as GpuDnnConvDesc
from .conv import GpuDnnConvGradI as GpuDnnConvGradI
from .conv import GpuDnnConvGradW as GpuDnnConvGradW
from .conv import dnn_conv as dnn_conv
from .conv import dnn_conv3d as dnn_conv3d
from .conv import dnn_gradinput as dnn_gradinput
from .conv import dnn_gradinput3d as dnn_gradinput3d
from .conv import dnn_gradweight as dnn_gradweight
from .conv import dnn_gradweight3d as dnn_gradweight3d
from .flags import flags_of as _flags_of
from .layers import GpuDnnBatchNorm as GpuDnnBatchNorm
from .layers import GpuDnnBatchNormGrad as GpuDnnBatchNormGrad
from .layers import GpuDnnBatchNormInference as GpuDnnBatchNormInference
from .layers import GpuDnnDropoutOp as GpuDnnDropoutOp
from .layers import GpuDnnPool as GpuDnnPool
from .layers import GpuDnnPoolDesc as GpuDnnPoolDesc
from .layers import GpuDnnPoolGrad as GpuDnnPoolGrad
from .layers import GpuDnnReduction as GpuDnnReduction
from .layers import GpuDnnSoftmax as GpuDnnSoftmax
from .layers import GpuDnnSoftmaxGrad as GpuDnnSoftmaxGrad
from .layers import GpuDnnTransformerGradI as GpuDnnTransformerGradI
from .layers import GpuDnnTransformerGradT as GpuDnnTransformerGradT
from .layers import GpuDnnTransformerGrid as GpuDnnTransformerGrid
from .layers import GpuDnnTransformerSampler as GpuDnnTransformerSampler
from .layers import dnn_batch_normalization_test as dnn_batch_normalization_test
from .layers import dnn_batch_normalization_train as dnn_batch_normalization_train
from .layers import dnn_pool as dnn_pool
from .layers import dnn_spatialtf as dnn_spatialtf
from .layers import dropout as dropout
from .rnn import GpuDnnRNNGradInputs as GpuDnnRNNGradInputs
from .rnn import GpuDnnRNNGradWeights as GpuDnnRNNGradWeights
from .rnn import GpuDnnRNNOp as GpuDnnRNNOp
from .rnn import RNNBlock as RNNBlock

# The functions and classes imported above; submodules are not callable.
__all__ = [name for name, value in globals().items() if callable(value) and name[0] != "_"]

# The flags for paths must be applied before anything loads cuDNN.
_flags_of(_config)
