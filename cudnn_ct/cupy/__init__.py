"""Names of CuPy 13's ``cupy.cudnn`` for programs that call them: :func:`install` puts them in their place.

The functions take and return arrays of CuPy, with the parameters of CuPy 13. The operations are those of this
package. The page "From cupy.cudnn" has what to write in new programs.
"""

from __future__ import annotations

import sys
from typing import Any

import cudnn_ct as ct

from ..dtypes import as_dtype
from ..typing import Activation, NormMode, SoftmaxAlgo
from . import libs

__all__ = [
    "activation_backward",
    "activation_forward",
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "get_data_type",
    "get_max_workspace_size",
    "install",
    "is_tensor_core_available",
    "pooling_backward",
    "pooling_forward",
    "set_max_workspace_size",
    "softmax_backward",
    "softmax_forward",
]

Array = Any

ACTIVATIONS: tuple[Activation, ...] = ("sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish")
POOLINGS = ("max", "average_count_include_padding", "average_count_exclude_padding", "max_deterministic")
SOFTMAXES: tuple[SoftmaxAlgo, ...] = ("fast", "accurate", "log")
NORMS: tuple[NormMode, ...] = ("per_activation", "spatial", "spatial_persistent")
NCHW, NHWC = 0, 1
UNLIMITED = 2**63 - 1


def install() -> None:
    """Register this module as ``cupy.cudnn`` and ``cupyx.cudnn``, and the constants as ``cupy.cuda.cudnn``.

    Call it before the program that imports them. Programs read ``cupy.cuda.cudnn_enabled``, which is set.

    Raises
    ------
    RuntimeError
        CuPy has loaded its own ``cupy.cudnn``, as versions up to 13 do.
    ImportError
        CuPy is not installed.

    Examples
    --------
    >>> import cudnn_ct.cupy  # doctest: +SKIP
    >>> cudnn_ct.cupy.install()  # doctest: +SKIP
    >>> from cupy import cudnn  # doctest: +SKIP
    """
    import cupy
    import cupyx

    own = sys.modules[__name__]
    loaded = sys.modules.get("cupyx.cudnn") or sys.modules.get("cupy.cudnn")
    if loaded not in (None, own):
        raise RuntimeError(f"CuPy {cupy.__version__} has loaded its own cupy.cudnn: install() is for CuPy 14")
    names = ("cupy.cudnn", "cupyx.cudnn"), ("cupy.cuda.cudnn", "cupy_backends.cuda.libs.cudnn")
    sys.modules.update(dict.fromkeys(names[0], own) | dict.fromkeys(names[1], libs))
    cupy.cudnn = cupyx.cudnn = own
    cupy.cuda.cudnn, cupy.cuda.cudnn_enabled = libs, True


# --- convolutions ------------------------------------------------------------------------------------------


def convolution_forward(
    x: Array,
    W: Array,  # noqa: N803 - CuPy's name
    b: Array | None,
    y: Array,
    pad: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...] | None,
    groups: int,
    *,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write the convolution of x and W, plus a bias, to y: :func:`cudnn_ct.conv`."""
    images, result = _channels_second(x, d_layout), _channels_second(y, d_layout)
    ways = _ways(x, auto_tune, False, tensor_core)
    geometry = _geometry(pad, stride, dilation, groups)
    ct.conv(images, _channels_second(W, w_layout), **geometry, **ways, out=result)
    _add_bias(result, b)


def convolution_backward_data(
    W: Array,  # noqa: N803 - CuPy's name
    x: Array,
    b: Array | None,
    y: Array,
    pad: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...] | None,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write the gradient of a convolution in its image to y, plus a bias.

    :func:`cudnn_ct.conv_backward_data`; ``x`` is the gradient of the result.
    """
    dy, result = _channels_second(x, d_layout), _channels_second(y, d_layout)
    ways = _ways(x, auto_tune, deterministic, tensor_core)
    geometry = _geometry(pad, stride, dilation, groups)
    ct.conv_backward_data(dy, _channels_second(W, w_layout), result.shape, **geometry, **ways, out=result)
    _add_bias(result, b)


def convolution_backward_filter(
    x: Array,
    gy: Array,
    gW: Array,  # noqa: N803 - CuPy's name
    pad: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...] | None,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write the gradient of a convolution in its filter to gW: :func:`cudnn_ct.conv_backward_filter`."""
    dy, images, result = (
        _channels_second(gy, d_layout),
        _channels_second(x, d_layout),
        _channels_second(gW, w_layout),
    )
    ways = _ways(x, auto_tune, deterministic, tensor_core)
    geometry = _geometry(pad, stride, dilation, groups)
    ct.conv_backward_filter(dy, images, result.shape, **geometry, **ways, out=result)


def _geometry(pad: Any, stride: Any, dilation: Any, groups: int) -> dict[str, Any]:
    dilations = (1,) * len(pad) if dilation is None else tuple(dilation)
    return {"padding": tuple(pad), "stride": tuple(stride), "dilation": dilations, "groups": groups}


def _ways(x: Array, auto_tune: bool, deterministic: bool, tensor_core: str) -> dict[str, Any]:
    """Return how an algorithm is selected; only ``"never"`` forbids TF32."""
    if tensor_core not in ("auto", "always", "never"):
        raise ValueError(f"tensor_core must be 'auto', 'always' or 'never': got {tensor_core!r}")
    ways: dict[str, Any] = {"deterministic": True} if deterministic else {}
    if auto_tune and not deterministic:
        ways["algo"] = "autotune"
    if tensor_core == "never" and x.dtype.name == "float32":
        ways["precision"] = "float32"
    return ways


def _channels_second(array: Array, layout: int) -> Array:
    """Return an array of shape (N, H, W, C) as a view of shape (N, C, H, W)."""
    if layout not in (NCHW, NHWC):
        raise ValueError(f"the layout must be CUDNN_TENSOR_NCHW (0) or CUDNN_TENSOR_NHWC (1): got {layout}")
    return array.transpose(0, 3, 1, 2) if layout == NHWC else array


def _add_bias(y: Array, b: Array | None) -> None:
    if b is not None:
        y += b.reshape(1, -1, *(1,) * (y.ndim - 2))


def get_max_workspace_size() -> int:
    """Return the limit of workspaces in bytes: ``ct.config.workspace_limit``."""
    limit = ct.config.workspace_limit
    return UNLIMITED if limit is None else limit


def set_max_workspace_size(size: int) -> None:
    """Set the limit of workspaces in bytes."""
    ct.config.workspace_limit = size


def is_tensor_core_available(dtype: Any) -> bool:
    """Return whether CuPy would use tensor cores for a dtype: for half precision."""
    return as_dtype(dtype).name == "float16"


def get_data_type(dtype: Any) -> int:
    """Return ``cudnnDataType_t`` of a dtype."""
    return as_dtype(dtype).code


# --- layers ------------------------------------------------------------------------------------------------


def activation_forward(x: Array, mode: int, coef: float = 0.0) -> Array:
    """Return an activation of x: :func:`cudnn_ct.activation`."""
    kind: dict[str, Any] = {"mode": ACTIVATIONS[mode], "coefficient": coef, "propagate_nan": False}
    return _filled(x, lambda out: ct.activation(x, **kind, out=out))


def activation_backward(x: Array, y: Array, gy: Array, mode: int, coef: float = 0.0) -> Array:
    """Return the gradient of an activation: :func:`cudnn_ct.activation_backward`."""
    kind: dict[str, Any] = {"mode": ACTIVATIONS[mode], "coefficient": coef}
    return _filled(x, lambda out: ct.activation_backward(gy, x, y, **kind, out=out))


def softmax_forward(x: Array, axis: int, algorithm: int) -> Array:
    """Return the softmax over an axis: :func:`cudnn_ct.softmax`."""
    return _filled(x, lambda out: ct.softmax(x, axis=axis, algo=SOFTMAXES[algorithm], out=out))


def softmax_backward(y: Array, gy: Array, axis: int, algorithm: int) -> Array:
    """Return the gradient of a softmax: :func:`cudnn_ct.softmax_backward`."""
    return _filled(y, lambda out: ct.softmax_backward(gy, y, axis=axis, algo=SOFTMAXES[algorithm], out=out))


def pooling_forward(x: Array, y: Array, ksize: Any, stride: Any, pad: Any, mode: int) -> Array:
    """Write a pooling of x to y, and return y: :func:`cudnn_ct.pool`."""
    ct.pool(x, **_windows(ksize, stride, pad, mode), out=y)
    return y


def pooling_backward(x: Array, y: Array, gy: Array, ksize: Any, stride: Any, pad: Any, mode: int) -> Array:
    """Return the gradient of a pooling: :func:`cudnn_ct.pool_backward`."""
    return _filled(x, lambda out: ct.pool_backward(gy, x, y, **_windows(ksize, stride, pad, mode), out=out))


def _windows(ksize: Any, stride: Any, pad: Any, mode: int) -> dict[str, Any]:
    sizes = {"window": tuple(ksize), "stride": tuple(stride), "padding": tuple(pad)}
    return {**sizes, "mode": POOLINGS[mode], "propagate_nan": False}


def _filled(like: Array, call: Any) -> Array:
    """Return a new array of CuPy that a call has filled."""
    out = _empty(like.shape, like.dtype)
    call(out)
    return out


def _empty(shape: Any, dtype: Any) -> Array:
    return sys.modules["cupy"].empty(shape, dtype)


# --- batch normalisation -----------------------------------------------------------------------------------


def batch_normalization_forward_training(
    x: Array,
    gamma: Array,
    beta: Array,
    running_mean: Array,
    running_var: Array,
    mean: Array | None,
    inv_std: Array | None,
    eps: float,
    decay: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,
    d_layout: int = NCHW,
) -> Any:
    """Return y, or y, the mean and its inverse deviation if they are not given: `ct.batch_norm_training`.

    The running statistics are updated in place.
    """
    statistics = running_mean, running_var, mean, inv_std
    _, *results = batch_normalization_forward_training_ex(
        x, gamma, beta, *statistics, eps, decay, is_for_conv2d, cudnn_mode, debug, d_layout
    )
    return results[0] if len(results) == 1 else tuple(results)


def batch_normalization_forward_training_ex(
    x: Array,
    gamma: Array,
    beta: Array,
    running_mean: Array,
    running_var: Array,
    mean: Array | None,
    inv_std: Array | None,
    eps: float,
    decay: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,
    d_layout: int = NCHW,
) -> tuple[Any, ...]:
    """Return the same behind a reserve, which is None."""
    if (mean is None) != (inv_std is None):
        raise ValueError("mean and inv_std must both be given, or neither")
    images, mode = _images(x, is_for_conv2d, d_layout), NORMS[cudnn_mode]
    kind = _dtype_of_parameters(x)
    y = _empty(x.shape, x.dtype)
    saved = [_empty(gamma.shape, kind) if one is None else one for one in (mean, inv_std)]
    running = [one.astype(kind, copy=False) for one in (running_mean, running_var)]
    scale, bias, moving_mean, moving_var, *statistics = (
        _parameter(one.astype(kind, copy=False), images, mode) for one in (gamma, beta, *running, *saved)
    )
    ct.batch_norm_training(
        images, scale, bias, mode=mode, epsilon=eps, running_mean=moving_mean, running_var=moving_var,
        momentum=1 - decay, out=(_images(y, is_for_conv2d, d_layout), *statistics),
    )  # fmt: skip
    for one, given in zip(running, (running_mean, running_var), strict=True):
        if one is not given:
            given[...] = one
    if debug and mode == "spatial_persistent":
        ct.batch_norm_overflow_detected(wait=True)
    return (None, y, *saved) if mean is None else (None, y)


def batch_normalization_forward_inference(
    x: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    var: Array,
    eps: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    d_layout: int = NCHW,
) -> Array:
    """Return x normalised by given statistics: :func:`cudnn_ct.batch_norm_inference`."""
    images, mode = _images(x, is_for_conv2d, d_layout), NORMS[cudnn_mode]
    y, kind = _empty(x.shape, x.dtype), _dtype_of_parameters(x)
    parameters = [_parameter(one.astype(kind, copy=False), images, mode) for one in (gamma, beta, mean, var)]
    result = _images(y, is_for_conv2d, d_layout)
    ct.batch_norm_inference(images, *parameters, mode=mode, epsilon=eps, out=result)
    return y


def batch_normalization_backward(
    x: Array,
    gamma: Array,
    gy: Array,
    mean: Array,
    inv_std: Array,
    eps: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,  # noqa: ARG001 - the forward pass has it too
    d_layout: int = NCHW,
    *,
    reserve_space: object = None,  # noqa: ARG001 - nothing is kept
) -> tuple[Array, Array, Array]:
    """Return the gradients of x, gamma and beta: :func:`cudnn_ct.batch_norm_backward`."""
    images, mode = _images(x, is_for_conv2d, d_layout), NORMS[cudnn_mode]
    kind = _dtype_of_parameters(x)
    results = _empty(x.shape, x.dtype), _empty(gamma.shape, kind), _empty(gamma.shape, kind)
    scale, *saved = (_parameter(one.astype(kind, copy=False), images, mode) for one in (gamma, mean, inv_std))
    written = [_images(results[0], is_for_conv2d, d_layout)]
    written += [_parameter(one, images, mode) for one in results[1:]]
    dy = _images(gy, is_for_conv2d, d_layout)
    ct.batch_norm_backward(dy, images, scale, *saved, mode=mode, epsilon=eps, out=tuple(written))
    dgamma, dbeta = (one.astype(gamma.dtype, copy=False) for one in results[1:])
    return results[0], dgamma, dbeta


def _images(x: Array, is_for_conv2d: bool, layout: int) -> Array:
    """Return a view with the channels second; without images, the last axis has the channels."""
    if is_for_conv2d:
        return _channels_second(x, layout)
    return x.reshape(-1, x.shape[-1] if x.ndim else 1)


def _dtype_of_parameters(x: Array) -> str:
    return "float32" if x.dtype.name == "float16" else str(x.dtype.name)


def _parameter(array: Array, x: Array, mode: str) -> Array:
    """Return a view of a parameter in the shape that broadcasts to x."""
    return array.reshape(1, *x.shape[1:] if mode == "per_activation" else (-1, *(1,) * (x.ndim - 2)))


def __getattr__(name: str) -> Any:
    return getattr(libs, name)
