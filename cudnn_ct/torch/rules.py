"""Functions of torch that operators serve, as a table: each serves a call, or raises the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .attention_rules import RULES as ATTENTION
from .images import conv, conv_transpose, pool
from .leaving import FLOATS, HALF, LeftToTorchError, flags, same_dtype, sizes, unless
from .norms import batch_norm, instance_norm, layer_norm, rms_norm
from .products import softmax
from .recurrent import rnn

__all__ = ["RULES"]

# --- images ------------------------------------------------------------------------------------------------


def _conv(axes: int) -> Callable[..., Tensor]:
    def serve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        unless(input.dim() != axes + 2, "no batch axis")
        unless(padding == "same" and stride not in (1, (1,) * axes, [1] * axes), 'a stride with "same"')
        same_dtype(input, weight, bias)
        geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return conv(input, weight, bias, **geometry)

    return serve


def _conv_transpose(axes: int) -> Callable[..., Tensor]:
    def serve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        unless(input.dim() != axes + 2, "no batch axis")
        same_dtype(input, weight, bias)
        geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return conv_transpose(input, weight, bias, output_padding=output_padding, **geometry)

    return serve


def _max_pool(axes: int) -> Callable[..., Tensor]:
    def serve(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        flags(ceil_mode, return_indices)
        sizes(kernel_size, padding)
        unless(return_indices, "indices are not computed")
        spread = (dilation,) if isinstance(dilation, int) else dilation
        unless(any(step != 1 for step in spread), "dilation is not supported")
        unless(ceil_mode, "ceil_mode is not supported")
        unless(input.dim() != axes + 2, "no batch axis")
        same_dtype(input)
        return pool(input, kernel_size, stride=_or_none(stride), padding=padding)

    return serve


def _average_pool(axes: int) -> Callable[..., Tensor]:
    def serve(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        flags(ceil_mode, count_include_pad)
        sizes(kernel_size, padding)
        unless(ceil_mode, "ceil_mode is not supported")
        unless(divisor_override is not None, "divisor_override is not supported")
        unless(input.dim() != axes + 2, "no batch axis")
        same_dtype(input)
        mode = "average_inc_pad" if count_include_pad else "average_exc_pad"
        return pool(input, kernel_size, stride=_or_none(stride), padding=padding, mode=mode)

    return serve


def _global_average(axes: int) -> Callable[..., Tensor]:
    def serve(input: Tensor, output_size: Any) -> Tensor:
        sizes(output_size)
        lengths = (output_size,) * axes if isinstance(output_size, int) else tuple(output_size)
        unless(lengths != (1,) * axes, "only an average of whole images is supported")
        unless(input.dim() != axes + 2, "no batch axis")
        same_dtype(input)
        return pool(input, tuple(input.shape[2:]), mode="average_inc_pad")

    return serve


def _or_none(stride: Any) -> Any:
    """Return a stride; None for torch's empty one, which is the window."""
    return None if stride is None or stride == [] or stride == () else stride


# --- normalisations ----------------------------------------------------------------------------------------


def _norm_parameters(x: Tensor, *parameters: Tensor | None, half: bool = False) -> None:
    """Leave norms without parameters, and those whose parameters have another dtype than cuDNN takes."""
    dtype = x.dtype
    unless(dtype not in FLOATS, "{} is not supported", dtype)
    wide = torch.float32 if dtype in HALF and not half else dtype
    for one in parameters:
        if one is None:
            raise LeftToTorchError("no scale and bias")
        if one.dtype is not wide:
            raise LeftToTorchError(f"parameters are not {wide} for {dtype}")


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _requires_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _is_mapped() -> bool:
    """Return whether torch.vmap maps a call; compiled programs have none."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    flags(training)
    half = not training and weight is not None and weight.dtype in HALF
    _norm_parameters(input, weight, bias, half=half)
    unless((running_mean is None) != (running_var is None), "only one running statistic")
    if running_mean is not None:
        _norm_parameters(input, running_mean, running_var, half=half)
    if half:
        unless(_requires_grad(input, weight, bias), "gradients with parameters of {}", input.dtype)
        order = _CHANNELS_LAST.get(input.dim(), torch.contiguous_format)
        fits = input.dim() in (2, *_CHANNELS_LAST) and input.is_contiguous(memory_format=order)
        unless(not fits, "parameters of {} and channels that are not last", input.dtype)
    unless(training and input.numel() == input.shape[1], "a single sample")
    unless(training and _is_mapped(), "torch.vmap computes the statistics of all samples at once")
    assert weight is not None
    assert bias is not None
    if not (training or _is_mapped() or torch.compiler.is_compiling()) and _requires_grad(
        input, weight, bias
    ):
        # A training call may update them before the gradient. Torch does not raise, and reads the new values.
        running_mean, running_var = (None if one is None else one.data for one in (running_mean, running_var))
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    flags(use_input_stats)
    unless(running_mean is not None or running_var is not None or not use_input_stats, "running statistics")
    unless(input.dim() < 3 or input.shape[2:].numel() == 1, "no spatial axes, or one element")
    _norm_parameters(input, weight, bias)
    assert weight is not None
    assert bias is not None
    if _requires_grad(input, weight):
        weight = weight.clone()  # an optimizer may change it before the gradient, as in torch
    return instance_norm(input, weight, bias, eps=eps)


def _row_parameters(x: Tensor, axes: Any, weight: Tensor | None, bias: Tensor | None) -> None:
    unless(x.dtype not in (*HALF, torch.float32), "{} is not supported", x.dtype)
    unless(weight is None, "no scale")
    assert weight is not None
    unless(tuple(weight.shape) != tuple(axes), "scale has another shape")
    unless(weight.dtype not in (x.dtype, torch.float32), "scale has another dtype")
    unless(bias is not None and bias.dtype != weight.dtype, "scale and bias have several dtypes")


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    sizes(normalized_shape)
    _row_parameters(input, normalized_shape, weight, bias)
    assert weight is not None
    return layer_norm(input, weight, bias, eps=eps)


def _rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    sizes(normalized_shape)
    _row_parameters(input, normalized_shape, weight, None)
    # Versions of torch differ in the default for half precision.
    unless(eps is None and input.dtype in HALF, "eps is not given")
    assert weight is not None
    return rms_norm(input, weight, eps=torch.finfo(input.dtype).eps if eps is None else eps)


# --- softmax ---------------------------------------------------------------------------------


def _softmax(log: bool) -> Callable[..., Tensor]:
    def serve(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        if isinstance(_stacklevel, torch.dtype):  # torch.softmax(input, dim, dtype)
            dtype = _stacklevel
        unless(dim is None, "no dim")
        unless(dtype is not None, "dtype is given")
        unless(type(dim) is not int or not -input.dim() <= dim < input.dim(), "dim is not an axis")
        same_dtype(input)
        assert dim is not None
        return softmax(input, dim, log=log)

    return serve


# --- recurrent networks ------------------------------------------------------------------------------------


def _recurrent(mode: str) -> Callable[..., Any]:
    def serve(input: Tensor, *given: Any) -> tuple[Tensor, ...]:
        """Serve sequences (hx, weights, ...), or packed ones (batch_sizes, hx, weights, ...)."""
        packed = not isinstance(given[2], bool)
        states, weights, _, _, dropout, training, bidirectional, *rest = given[packed:]
        states = (states,) if isinstance(states, Tensor) else states
        same_dtype(input, *states, *weights)
        unless(input.dim() != 3 - packed, "no batch axis")
        h0, c0 = (*states, None)[:2]
        facts: dict[str, Any] = {"batch_sizes": given[0]} if packed else {"batch_first": rest[0]}
        facts |= {"mode": mode, "bidirectional": bidirectional, "dropout": dropout, "training": training}
        y, hy, cy = rnn(input, weights, h0, c0, **facts)
        return (y, hy) if cy is None else (y, hy, cy)

    return serve


# --- the table ---------------------------------------------------------------------------------------------

RULES: dict[Any, tuple[str, Callable[..., Any]]] = {
    **{getattr(torch, f"conv{axes}d"): ("conv", _conv(axes)) for axes in (1, 2, 3)},
    **{
        getattr(torch, f"conv_transpose{axes}d"): ("conv_transpose", _conv_transpose(axes))
        for axes in (1, 2, 3)
    },
    **{getattr(F, f"max_pool{axes}d"): ("pool", _max_pool(axes)) for axes in (1, 2, 3)},
    **{getattr(F, f"avg_pool{axes}d"): ("pool", _average_pool(axes)) for axes in (1, 2, 3)},
    **{getattr(F, f"adaptive_avg_pool{axes}d"): ("pool", _global_average(axes)) for axes in (1, 2, 3)},
    F.batch_norm: ("batch_norm", _batch_norm),
    F.instance_norm: ("instance_norm", _instance_norm),
    F.layer_norm: ("layer_norm", _layer_norm),
    F.rms_norm: ("rms_norm", _rms_norm),
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), ("softmax", _softmax(False))),
    **dict.fromkeys((F.log_softmax, torch.log_softmax, Tensor.log_softmax), ("softmax", _softmax(True))),
    **ATTENTION,
    torch.lstm: ("lstm", _recurrent("lstm")),
    torch.gru: ("gru", _recurrent("gru")),
    torch.rnn_relu: ("rnn", _recurrent("rnn_relu")),
    torch.rnn_tanh: ("rnn", _recurrent("rnn_tanh")),
}
"""The groups and functions that serve calls, by the functions of torch."""
