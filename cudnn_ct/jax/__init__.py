"""Operations on arrays of JAX, inside and outside of ``jax.jit``, with gradients and vmap.

    from cudnn_ct import jax as ctj

On a GPU cuDNN computes on the memory and the stream of XLA. On the CPU the same functions are those of
:mod:`cudnn_ct.reference`. The page "JAX" is the guide.
"""

from __future__ import annotations

try:
    from .ffi import check_version
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError('cudnn_ct.jax needs JAX: python -m pip install "cudnn-ct[jax]"') from None

check_version()

# They register handlers of the interface that was checked.
from .layers import activation, conv, conv_bias_activation, conv_transpose, lrn, pool, softmax  # noqa: E402
from .recurrent import RecurrentResult, rnn, rnn_weight_size  # noqa: E402
from .rows import (  # noqa: E402
    attention,
    batch_norm_inference,
    batch_norm_training,
    ctc_loss,
    grid_sample,
    group_norm,
    instance_norm,
    layer_norm,
    matmul,
    rms_norm,
)

__all__ = [
    "RecurrentResult",
    "activation",
    "attention",
    "batch_norm_inference",
    "batch_norm_training",
    "conv",
    "conv_bias_activation",
    "conv_transpose",
    "ctc_loss",
    "grid_sample",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "lrn",
    "matmul",
    "pool",
    "rms_norm",
    "rnn",
    "rnn_weight_size",
    "softmax",
]
