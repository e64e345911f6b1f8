"""Functions of torch that compute attention, which operators serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .leaving import HALF, same_dtype, unless
from .products import attention

__all__ = ["AGAIN", "RULES", "Attend"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention to keys and values, shape (N, heads, S, E)."""


def _heads(dtype: torch.dtype, width: int, value_width: int) -> None:
    """Leave heads for which cuDNN has no attention."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else dtype
    unless(dtype not in HALF, "{} is not supported", dtype)
    unless(width % 8 or value_width % 8 or max(width, value_width) > 256, "heads of {}", width)


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
    unless(dropout_p, "dropout has torch's random numbers")
    unless(any(one.dim() != 4 for one in (query, key, value)), "operands do not have 4 axes")
    same_dtype(query, key, value)
    _heads(query.dtype, query.shape[-1], value.shape[-1])
    unless(query.shape[1] != key.shape[1] and not enable_gqa, "heads are broadcast")
    unless(scale is not None and scale <= 0, "scale is not positive")
    if attn_mask is not None:
        unless(is_causal or attn_mask.dim() < 2, "a mask besides is_causal, or of one axis")
        unless(attn_mask.requires_grad, "the mask requires a gradient")
        unless(attn_mask.shape[-1] != key.shape[2] or attn_mask.dim() > 4, "the mask is broadcast over keys")
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
    unless(need_weights, "weights are needed")
    unless(key is not query or value is not query, "not self-attention")
    unless(query.dim() != 3, "no batch axis")
    masked = key_padding_mask is not None or attn_mask is not None or rest.get("is_causal")
    unless(masked, "masks are not supported")
    unless(use_separate_proj_weight or bias_k is not None or bias_v is not None, "separate projections")
    unless(add_zero_attn, "add_zero_attn is not supported")
    unless(any(rest.get(name) is not None for name in ("static_k", "static_v")), "static keys")
    unless(in_proj_weight is None or embed_dim_to_check != query.shape[-1], "separate projections")
    # Before the projection, which torch would compute again.
    unless(dropout_p and training, "dropout has torch's random numbers")
    width, uneven = divmod(query.shape[2], num_heads)
    unless(uneven, "heads of {}", query.shape[2] / num_heads)
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
    unless(need_weights, "weights are needed")
    unless(key is not query or value is not query, "not self-attention")
    unless(mask is not None, "masks are not supported")
    return _self_attention(query, num_head, *projections[:4]), None


def _native_again(values: Sequence[Any], attend: Attend) -> tuple[Tensor, None] | None:
    """Repeat a settled call of `_native_multi_head_attention`."""
    query, key, value, _, heads, *projections = values[:9]
    if key is not query or value is not query:
        return None
    return _joined(query, heads, projections, attend), None


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    *parameters: Any,
    mask: Tensor | None = None,
    mask_type: int | None = None,  # noqa: ARG001
) -> Tensor:
    """Serve the attention of an evaluated layer of an encoder, shape (N, S, E); the rest is torch's."""
    mask = parameters[15] if len(parameters) > 15 else mask
    unless(mask is not None, "masks are not supported")
    _check(src, num_heads)
    return _encoded(src, embed_dim, num_heads, parameters, attention)


def _encoder_again(values: Sequence[Any], attend: Attend) -> Tensor:
    """Repeat a settled call of `_encoder_layer`."""
    src, width, heads, *parameters = values
    return _encoded(src, width, heads, parameters, attend)


def _encoded(src: Tensor, embed_dim: int, heads: int, parameters: Sequence[Any], attend: Attend) -> Tensor:
    projections, (gelu, norm_first, eps), weights = parameters[:4], parameters[4:7], parameters[7:15]

    def norm(x: Tensor, place: int) -> Tensor:
        return F.layer_norm(x, (embed_dim,), *weights[place : place + 2], eps)

    def feed(x: Tensor) -> Tensor:
        inner = (F.gelu if gelu else F.relu)(F.linear(x, *weights[4:6]))
        return F.linear(inner, *weights[6:8])

    def joined(x: Tensor) -> Tensor:
        return _joined(x, heads, projections, attend)

    if norm_first:
        x = src + joined(norm(src, 0))
        return x + feed(norm(x, 2))
    x = norm(src + joined(src), 0)
    return norm(x + feed(x), 2)


def _self_attention(x: Tensor, heads: int, *projections: Tensor) -> Tensor:
    """Return the attention of each sequence of a batch to itself, shape (N, S, E)."""
    _check(x, heads)
    return _joined(x, heads, projections, attention)


def _check(x: Tensor, heads: int) -> None:
    unless(x.is_nested or x.dim() != 3, "no batch axis")
    width, uneven = divmod(x.shape[2], heads)
    unless(uneven, "heads of {}", x.shape[2] / heads)
    _heads(x.dtype, width, width)


def _joined(x: Tensor, heads: int, projections: Sequence[Tensor], attend: Attend) -> Tensor:
    weight, bias, out_weight, out_bias = projections
    batch, length, width = x.shape
    packed = F.linear(x, weight, bias).view(batch, length, 3, heads, width // heads)
    y = attend(*packed.permute(2, 0, 3, 1, 4).unbind(0))
    return F.linear(y.transpose(1, 2).reshape(x.shape), out_weight, out_bias)


RULES: dict[Any, tuple[str, Callable[..., Any]]] = {
    F.scaled_dot_product_attention: ("attention", _attention),
    F.multi_head_attention_forward: ("attention", _multi_head_attention),
    torch._native_multi_head_attention: ("attention", _native_multi_head_attention),
    torch._transformer_encoder_layer_fwd: ("attention", _encoder_layer),
}

AGAIN: dict[Any, Callable[[Sequence[Any], Attend], Any]] = {
    torch._native_multi_head_attention: _native_again,
    torch._transformer_encoder_layer_fwd: _encoder_again,
}
"""Functions that repeat a settled call, by the functions of torch; they return None for another call."""
