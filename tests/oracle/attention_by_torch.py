"""Attention by PyTorch on whole batches: sequences are padded, and masks have all pairs."""

from __future__ import annotations

from typing import Any

import torch

from .answer import Arguments, Span, attention_band, attention_spans
from .tables import defined

__all__ = ["ATTENTION"]

Tensors = dict[str, Any]


def attention(operands: Tensors, arguments: Arguments) -> Tensors:
    spans = attention_spans(operands, arguments)
    q, k, v = (_padded(operands, arguments, name, spans) for name in "qkv")
    scores = _scores(operands, arguments, spans, q, k)
    stats = torch.logsumexp(scores, -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)  # of rows without keys
    found = {"y": _unpadded(weights @ v, operands, spans, 0.0)}
    if arguments.get("return_stats"):
        found["stats"] = _unpadded(stats, operands, spans, -torch.inf)
    return found


def clear_padding(operands: Tensors, arguments: Arguments) -> Tensors:
    x, lengths = operands["x"], torch.as_tensor(arguments["lengths"], device=operands["x"].device)
    behind = torch.arange(x.shape[2], device=x.device) >= lengths[:, None]
    return {"y": x.masked_fill(behind[:, None, :, None], 0.0)}


def scaled_attention(operands: Tensors, arguments: Arguments) -> Tensors:
    """Attention of the dequantised operands; scales of the weights and of the result follow."""
    wide = {name: _times(operands[name], operands, f"descale_{name}") for name in "qkv"}
    found = attention(wide, arguments)
    o = _times(_times(found["y"], operands, "scale_s"), operands, "descale_s")
    amax = {"amax": o.abs().max().reshape(1)} if arguments.get("amax") else {}
    return {**found, "y": _times(o, operands, "scale_o"), **amax}


def _times(x: Any, operands: Tensors, name: str) -> Any:
    return x if operands.get(name) is None else x * operands[name].reshape(())


def attention_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    """The gradients by the given result and statistics: the chain rule by autograd, the softmax by hand."""
    spans = attention_spans(operands, arguments)
    q, k, v, dy, y = (_padded(operands, arguments, name, spans) for name in ("q", "k", "v", "dy", "y"))
    stats = _padded(operands, arguments, "stats", spans)
    leaves = [one.detach().requires_grad_() for one in (q, k, v)]
    bias = None if arguments.get("mask") else operands.get("bias")
    if bias is not None:
        leaves.append(bias.detach().requires_grad_())
    scores = _scores({**operands, "bias": leaves[3]} if bias is not None else operands, arguments, spans,
                     leaves[0], leaves[1])  # fmt: skip
    with torch.no_grad():
        known = torch.isfinite(scores) & torch.isfinite(stats)[..., None]
        weights = torch.where(known, torch.exp(scores - stats[..., None]), 0.0)
        incoming = weights * (dy @ v.transpose(-1, -2) - (dy * y).sum(-1, keepdim=True))
    finite = torch.where(known, scores, 0.0)
    total = (finite * incoming).sum() + ((weights @ leaves[2]) * dy).sum()
    found = torch.autograd.grad(total, leaves)
    kv_heads = operands["k"].shape[1]
    results = {"dq": _unpadded(found[0], operands, spans, 0.0)}
    for name, gradient in zip(("dk", "dv"), found[1:3], strict=True):
        batch, heads, *rest = gradient.shape
        summed = gradient.reshape(batch, kv_heads, heads // kv_heads, *rest).sum(2)
        results[name] = _unpadded(summed, operands, spans, 0.0, keys=True)
    if arguments.get("dbias"):
        results["dbias"] = found[3]
    return results


def _padded(operands: Tensors, arguments: Arguments, name: str, spans: list[Span]) -> Any:
    """Return an operand as (B, H, S, ...) with the heads of q; packed sequences get one place each."""
    x, table = operands[name], arguments.get("page_table")
    heads, keys = operands["q"].shape[1], name in "kv"
    if keys and table is not None:
        pages = x[torch.as_tensor(table, device=x.device)]  # (B, pages, H, block, D)
        x = pages.transpose(1, 2).flatten(2, 3)
    if operands["q"].ndim == 3:
        starts = [(s.first_key, s.keys) if keys else (s.first_query, s.queries) for s in spans]
        parts = [x[first : first + count] for first, count in starts]
        x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).transpose(1, 2)
    return x.repeat_interleave(heads // x.shape[1], 1) if keys else x


def _unpadded(x: Any, operands: Tensors, spans: list[Span], fill: float, *, keys: bool = False) -> Any:
    """Return a result in the shape of the operands; rows behind the end of a sequence are filled."""
    counts = [span.keys if keys else span.queries for span in spans]
    if operands["q"].ndim == 3:
        tokens = operands["k" if keys else "q"].shape[0]
        whole = torch.full((tokens, x.shape[1], *x.shape[3:]), fill, dtype=x.dtype, device=x.device)
        for one, span, count in zip(x, spans, counts, strict=True):
            first = span.first_key if keys else span.first_query
            whole[first : first + count] = one[:, :count].transpose(0, 1)
        return whole
    inside = torch.arange(x.shape[2], device=x.device) < torch.as_tensor(counts, device=x.device)[:, None]
    inside = inside.reshape(len(counts), 1, -1, *(1,) * (x.ndim - 3))
    return torch.where(inside, x, torch.full_like(x, fill))


def _scores(operands: Tensors, arguments: Arguments, spans: list[Span], q: Any, k: Any) -> Any:
    """Return the scores, -inf for masked pairs."""
    scale, bias = arguments.get("scale"), operands.get("bias")
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if arguments.get("mask"):
        scores = scores.masked_fill(bias == 0, -torch.inf)
    elif bias is not None:
        scores = scores + bias
    i = torch.arange(q.shape[2], device=q.device, dtype=q.dtype)[:, None]
    j = torch.arange(k.shape[2], device=q.device, dtype=q.dtype)[None]
    masks = []
    for span in spans:
        low, high = attention_band(arguments, span.queries, span.keys)
        masks.append((i < span.queries) & (j < span.keys) & (j - i >= low) & (j - i <= high))
    return scores.masked_fill(~torch.stack(masks)[:, None], -torch.inf)


ATTENTION = defined(globals())
