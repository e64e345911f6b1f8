"""cuDNN's operations as operators of PyTorch: with gradients, in unchanged models, under ``torch.compile``.

The functions take CUDA tensors and return tensors of torch's allocator on torch's current stream. The
operators are ``torch.ops.cudnn_ct``. Needs PyTorch 2.6 or newer.
"""

import re

import torch as _torch

if tuple(map(int, re.findall(r"\d+", _torch.__version__)[:2])) < (2, 6):
    raise ImportError(
        f"cudnn_ct.torch needs PyTorch 2.6 or newer: got {_torch.__version__}; pip install -U torch"
    )

from . import nn
from .fusion import fuse
from .images import (
    affine_grid,
    conv,
    conv_bias_activation,
    conv_transpose,
    grid_sample,
    lrn,
    pool,
)
from .norms import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from .products import activation, attention, ctc_loss, matmul, softmax
from .recurrent import RecurrentResult, rnn
from .serving import Report, enable, report

__all__ = [
    "RecurrentResult",
    "Report",
    "activation",
    "affine_grid",
    "attention",
    "batch_norm",
    "conv",
    "conv_bias_activation",
    "conv_transpose",
    "ctc_loss",
    "enable",
    "fuse",
    "grid_sample",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "lrn",
    "matmul",
    "nn",
    "pool",
    "report",
    "rms_norm",
    "rnn",
    "softmax",
]
