"""Functions of torch that operators serve, as a table: each serves a call, or raises the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .images import conv, conv_transpose, pool
from .norms import batch_norm, instance_norm, layer_norm, rms_norm
from .products import attention, softmax
from .recurrent import rnn

__all__ = ["RULES", "LeftToTorchError"]


class LeftToTorchError(Exception):
    """A call that no operator serves; the message is the reason."""


_HALF = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALF, torch.float32, torch.float64)


def _unless(problem: Any, reason: str, *values: Any) -> None:
    if problem:
        raise LeftToTorchError(reason.format(*values))  # formatted only then: it takes as long as a check


def _same_dtype(x: Tensor, *others: Tensor | None) -> None:
    """Leave operands of several dtypes, which autocast would cast, and those that are not floating."""
    _unless(x.dtype not in _FLOATS, "{} is not supported", x.dtype)
    for one in others:
        if one is not None and one.dtype is not x.dtype:
            _unless(not torch.is_autocast_enabled(), "operands have several dtypes")


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
        _unless(input.dim() != axes + 2, "no batch axis")
        _unless(padding == "same" and stride not in (1, (1,) * axes, [1] * axes), 'a stride with "same"')
        _same_dtype(input, weight, bias)
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
        _unless(input.dim() != axes + 2, "no batch axis")
        _same_dtype(input, weight, bias)
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
        _unless(return_indices, "indices are not computed")
        spread = (dilation,) if isinstance(dilation, int) else dilation
        _unless(any(step != 1 for step in spread), "dilation is not supported")
        _unless(ceil_mode, "ceil_mode is not supported")
        _unless(input.dim() != axes + 2, "no batch axis")
        _same_dtype(input)
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
        _unless(ceil_mode, "ceil_mode is not supported")
        _unless(divisor_override is not None, "divisor_override is not supported")
        _unless(input.dim() != axes + 2, "no batch axis")
        _same_dtype(input)
        mode = "average_inc_pad" if count_include_pad else "average_exc_pad"
        return pool(input, kernel_size, stride=_or_none(stride), padding=padding, mode=mode)

    return serve


def _global_average(axes: int) -> Callable[..., Tensor]:
    def serve(input: Tensor, output_size: Any) -> Tensor:
        sizes = (output_size,) * axes if isinstance(output_size, int) else tuple(output_size)
        _unless(sizes != (1,) * axes, "only an average of whole images is supported")
        _unless(input.dim() != axes + 2, "no batch axis")
        _same_dtype(input)
        return pool(input, tuple(input.shape[2:]), mode="average_inc_pad")

    return serve


def _or_none(stride: Any) -> Any:
    """Return a stride; None for torch's empty one, which is the window."""
    return None if stride is None or stride == [] or stride == () else stride


# --- normalisations ----------------------------------------------------------------------------------------


def _norm_parameters(x: Tensor, *parameters: Tensor | None, half: bool = False) -> None:
    """Leave norms without parameters, and those whose parameters have another dtype than cuDNN takes."""
    dtype = x.dtype
    _unless(dtype not in _FLOATS, "{} is not supported", dtype)
    wide = torch.float32 if dtype in _HALF and not half else dtype
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
    half = not training and weight is not None and weight.dtype in _HALF
    _norm_parameters(input, weight, bias, half=half)
    _unless((running_mean is None) != (running_var is None), "only one running statistic")
    if running_mean is not None:
        _norm_parameters(input, running_mean, running_var, half=half)
    if half:
        _unless(_requires_grad(input, weight, bias), "gradients with parameters of {}", input.dtype)
        order = _CHANNELS_LAST.get(input.dim(), torch.contiguous_format)
        fits = input.dim() in (2, *_CHANNELS_LAST) and input.is_contiguous(memory_format=order)
        _unless(not fits, "parameters of {} and channels that are not last", input.dtype)
    _unless(training and input.numel() == input.shape[1], "a single sample")
    _unless(training and _is_mapped(), "torch.vmap computes the statistics of all samples at once")
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
    _unless(running_mean is not None or running_var is not None or not use_input_stats, "running statistics")
    _unless(input.dim() < 3 or input.shape[2:].numel() == 1, "no spatial axes, or one element")
    _norm_parameters(input, weight, bias)
    assert weight is not None
    assert bias is not None
    if _requires_grad(input, weight):
        weight = weight.clone()  # an optimizer may change it before the gradient, as in torch
    return instance_norm(input, weight, bias, eps=eps)


def _row_parameters(x: Tensor, axes: Any, weight: Tensor | None, bias: Tensor | None) -> None:
    _unless(x.dtype not in (*_HALF, torch.float32), "{} is not supported", x.dtype)
    _unless(weight is None, "no scale")
    assert weight is not None
    _unless(tuple(weight.shape) != tuple(axes), "scale has another shape")
    _unless(weight.dtype not in (x.dtype, torch.float32), "scale has another dtype")
    _unless(bias is not None and bias.dtype != weight.dtype, "scale and bias have several dtypes")


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    _row_parameters(input, normalized_shape, weight, bias)
    assert weight is not None
    return layer_norm(input, weight, bias, eps=eps)


def _rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    _row_parameters(input, normalized_shape, weight, None)
    # Versions of torch differ in the default for half precision.
    _unless(eps is None and input.dtype in _HALF, "eps is not given")
    assert weight is not None
    return rms_norm(input, weight, eps=torch.finfo(input.dtype).eps if eps is None else eps)


# --- softmax and attention ---------------------------------------------------------------------------------


def _softmax(log: bool) -> Callable[..., Tensor]:
    def serve(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        if isinstance(_stacklevel, torch.dtype):  # torch.softmax(input, dim, dtype)
            dtype = _stacklevel
        _unless(dim is None, "no dim")
        _unless(dtype is not None, "dtype is given")
        _unless(type(dim) is not int or not -input.dim() <= dim < input.dim(), "dim is not an axis")
        _same_dtype(input)
        assert dim is not None
        return softmax(input, dim, log=log)

    return serve


def _heads(dtype: torch.dtype, width: int, value_width: int) -> None:
    """Leave heads for which cuDNN has no attention."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else dtype
    _unless(dtype not in _HALF, "{} is not supported", dtype)
    _unless(width % 8 or value_width % 8 or max(width, value_width) > 256, "heads of {}", width)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    _unless(dropout_p, "dropout has torch's random numbers")
    _unless(any(one.dim() != 4 for one in (query, key, value)), "operands do not have 4 axes")
    _same_dtype(query, key, value)
    _heads(query.dtype, query.shape[-1], value.shape[-1])
    _unless(query.shape[1] != key.shape[1] and not enable_gqa, "heads are broadcast")
    _unless(scale is not None and scale <= 0, "scale is not positive")
    if attn_mask is not None:
        _unless(is_causal or attn_mask.dim() < 2, "a mask besides is_causal, or of one axis")
        _unless(attn_mask.requires_grad, "the mask requires a gradient")
        _unless(attn_mask.shape[-1] != key.shape[2] or attn_mask.dim() > 4, "the mask is broadcast over keys")
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
    return attention(query, key, value, attn_mask, causal=is_causal, scale=scale)


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Serve self-attention, shape (S, N, E), whose weights are not needed."""
    _unless(need_weights, "weights are needed")
    _unless(key is not query or value is not query, "not self-attention")
    _unless(query.dim() != 3, "no batch axis")
    masked = key_padding_mask is not None or attn_mask is not None or rest.get("is_causal")
    _unless(masked, "masks are not supported")
    _unless(use_separate_proj_weight or bias_k is not None or bias_v is not None, "separate projections")
    _unless(add_zero_attn, "add_zero_attn is not supported")
    _unless(any(rest.get(name) is not None for name in ("static_k", "static_v")), "static keys")
    _unless(in_proj_weight is None or embed_dim_to_check != query.shape[-1], "separate projections")
    # Before the projection, which torch would compute again.
    _unless(dropout_p and training, "dropout has torch's random numbers")
    width, uneven = divmod(query.shape[2], num_heads)
    _unless(uneven, "heads of {}", query.shape[2] / num_heads)
    _heads(query.dtype, width, width)
    # Modules with batch_first give a transposed view, and transpose the result back: in the order of memory
    # nothing is copied.
    swapped = query.transpose(0, 1)
    batch_first = swapped.is_contiguous()
    x = swapped if batch_first else query
    packed = F.linear(x, in_proj_weight, in_proj_bias)
    heads = packed.view(*packed.shape[:2], 3, num_heads, width)
    q, k, v = heads.permute(2, *((0, 3, 1) if batch_first else (1, 3, 0)), 4).unbind(0)
    y = _attention(q, k, v)
    joined = y.permute(*((0, 2) if batch_first else (2, 0)), 1, 3).reshape(x.shape)
    found = F.linear(joined, out_proj_weight, out_proj_bias)
    return (found.transpose(0, 1) if batch_first else found), None


def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,  # noqa: ARG001
    num_head: int,
    *projections: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,  # noqa: ARG001
    mask_type: int | None = None,  # noqa: ARG001
) -> tuple[Tensor, None]:
    """Serve self-attention of an evaluated module, shape (N, S, E), whose weights are not needed."""
    if len(projections) > 4:  # all in order
        mask, need_weights = (*projections[4:], True)[:2]
    _unless(need_weights, "weights are needed")
    _unless(key is not query or value is not query, "not self-attention")
    _unless(mask is not None, "masks are not supported")
    return _self_attention(query, num_head, *projections[:4]), None


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    *parameters: Any,
    mask: Tensor | None = None,
    mask_type: int | None = None,  # noqa: ARG001
) -> Tensor:
    """Serve the attention of an evaluated layer of an encoder, shape (N, S, E); the rest is torch's."""
    projections, (gelu, norm_first, eps), weights = parameters[:4], parameters[4:7], parameters[7:15]
    mask = parameters[15] if len(parameters) > 15 else mask
    _unless(mask is not None, "masks are not supported")

    def norm(x: Tensor, place: int) -> Tensor:
        return F.layer_norm(x, (embed_dim,), *weights[place : place + 2], eps)

    def feed(x: Tensor) -> Tensor:
        inner = (F.gelu if gelu else F.relu)(F.linear(x, *weights[4:6]))
        return F.linear(inner, *weights[6:8])

    def attend(x: Tensor) -> Tensor:
        return _self_attention(x, num_heads, *projections)

    if norm_first:
        x = src + attend(norm(src, 0))
        return x + feed(norm(x, 2))
    x = norm(src + attend(src), 0)
    return norm(x + feed(x), 2)


def _self_attention(
    x: Tensor, heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor
) -> Tensor:
    """Return the attention of each sequence of a batch to itself, shape (N, S, E)."""
    _unless(x.is_nested or x.dim() != 3, "no batch axis")
    batch, length, width = x.shape
    _unless(x.dtype not in _HALF, "{} is not supported", x.dtype)
    _unless(width // heads % 8 or width // heads > 256, "heads of {}", width // heads)
    packed = F.linear(x, weight, bias).view(batch, length, 3, heads, width // heads)
    y = attention(*packed.permute(2, 0, 3, 1, 4).unbind(0))
    return F.linear(y.transpose(1, 2).reshape(x.shape), out_weight, out_bias)


# --- recurrent networks ------------------------------------------------------------------------------------


def _recurrent(mode: str) -> Callable[..., Any]:
    def serve(input: Tensor, *given: Any) -> tuple[Tensor, ...]:
        """Serve sequences (hx, weights, ...), or packed ones (batch_sizes, hx, weights, ...)."""
        packed = not isinstance(given[2], bool)
        states, weights, _, _, dropout, training, bidirectional, *rest = given[packed:]
        states = (states,) if isinstance(states, Tensor) else states
        _same_dtype(input, *states, *weights)
        _unless(input.dim() != 3 - packed, "no batch axis")
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
    F.scaled_dot_product_attention: ("attention", _attention),
    F.multi_head_attention_forward: ("attention", _multi_head_attention),
    torch._native_multi_head_attention: ("attention", _native_multi_head_attention),
    torch._transformer_encoder_layer_fwd: ("attention", _encoder_layer),
    torch.lstm: ("lstm", _recurrent("lstm")),
    torch.gru: ("gru", _recurrent("gru")),
    torch.rnn_relu: ("rnn", _recurrent("rnn_relu")),
    torch.rnn_tanh: ("rnn", _recurrent("rnn_tanh")),
}
"""The groups and functions that serve calls, by the functions of torch."""
