"""Theano's ``dnn`` module over the operations of this package, for programs that were written for it.

Functions and operations take device arrays, run immediately and return device arrays. Gradients are separate
operations. ``docs/migrating-from-theano.md`` describes the parameters and the differences from Theano. The
flags are ``ct.config.dnn``.
"""

from importlib import import_module as _import_module

from cudnn_ct._config import config as _config

from .flags import flags_of as _flags_of

# The public names by the module that defines them. `python tools/stub.py --write` makes the stubs for type
# checkers, `__init__.pyi` and `cudnn_ct/dnn.pyi`, from this table.
_PUBLIC = {
    "checks": "dnn_available dnn_present version",
    "conv": (
        "GpuDnnConv GpuDnnConv3d GpuDnnConv3dGradI GpuDnnConv3dGradW GpuDnnConvDesc GpuDnnConvGradI "
        "GpuDnnConvGradW dnn_conv dnn_conv3d dnn_gradinput dnn_gradinput3d dnn_gradweight dnn_gradweight3d"
    ),
    "layers": (
        "GpuDnnBatchNorm GpuDnnBatchNormGrad GpuDnnBatchNormInference GpuDnnDropoutOp GpuDnnPool "
        "GpuDnnPoolDesc GpuDnnPoolGrad GpuDnnReduction GpuDnnSoftmax GpuDnnSoftmaxGrad "
        "GpuDnnTransformerGradI GpuDnnTransformerGradT GpuDnnTransformerGrid GpuDnnTransformerSampler "
        "dnn_batch_normalization_test dnn_batch_normalization_train dnn_pool dnn_spatialtf dropout"
    ),
    "rnn": "GpuDnnRNNGradInputs GpuDnnRNNGradWeights GpuDnnRNNOp RNNBlock",
}
for _module, _names in _PUBLIC.items():
    _found = vars(_import_module(f".{_module}", __name__))
    globals().update({_name: _found[_name] for _name in _names.split()})
__all__ = " ".join(_PUBLIC.values()).split()

# The flags for paths must be applied before anything loads cuDNN.
_flags_of(_config)
