"""Aggregation and attention of graphs by PyTorch, node by node; gradients by autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .answer import Arguments, named
from .neighbours import edges_to, rows_of
from .tables import defined

Tensors = dict[str, Any]

__all__ = ["NEIGHBOURS"]


def _reduced(values: Any, op: str) -> tuple[Any, Any]:
    if op in ("max", "min"):
        return getattr(values, op)(dim=0)
    return getattr(values, op)(dim=0), None


def graph_aggregate(operands: Tensors, arguments: Arguments) -> Tensors:
    op, lines, places = named(arguments.get("op"), "sum"), [], []
    for v, edges in edges_to(arguments):
        line, place = [], []
        for name in ("x", "edges"):
            if operands.get(name) is not None:
                rows = torch.as_tensor(rows_of(arguments, name)[edges])
                values, at = _reduced(operands[name][rows], op)
                line.append(values)
                place.append(rows if at is None else rows[at])
        if operands.get("concat") is not None:
            line.append(operands["concat"][v])
        lines.append(torch.cat(line))
        places.append(torch.cat(place))
    found = {"y": torch.stack(lines)}
    return found | {"positions": torch.stack(places)} if op in ("max", "min") else found


def graph_aggregate_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    dy = operands["dy"]
    leaves = {
        name: dy.new_zeros(arguments[f"{name}_shape"]).requires_grad_()
        for name in ("x", "edges")
        if arguments.get(f"{name}_shape") is not None
    }
    reduced = sum(one.shape[1] for one in leaves.values())
    if reduced < dy.shape[1]:
        leaves["concat"] = dy.new_zeros((dy.shape[0], dy.shape[1] - reduced)).requires_grad_()
    y = graph_aggregate(leaves, arguments)["y"]
    found = torch.autograd.grad(y, tuple(leaves.values()), dy)
    return {f"d{name}": one for name, one in zip(leaves, found, strict=True)}


def _activated(x: Any, arguments: Arguments) -> Any:
    alpha = arguments.get("coefficient", 0.2)
    curves = {
        "identity": lambda: x,
        "relu": lambda: functional.relu(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "tanh": lambda: torch.tanh(x),
        "elu": lambda: functional.elu(x),
        "scale": lambda: alpha * x,
        "leaky_relu": lambda: torch.where(x < 0, alpha * x, x),  # functional.leaky_relu has alpha at 0
    }
    return curves[named(arguments.get("activation"), "leaky_relu")]()


def graph_attention(operands: Tensors, arguments: Arguments) -> Tensors:
    """Attend; saved vectors and scores take the place of the values that they are derived from."""
    x, target, w = (operands[name] for name in ("x", "target", "w"))
    heads, rows = arguments.get("heads", 1), torch.as_tensor(rows_of(arguments, "edges"))
    lines, parts, logits_of, weights_of = [], [], [], []
    for v, edges in edges_to(arguments):
        sources = x[torch.as_tensor(rows_of(arguments, "x")[edges])]
        sums = sources + target[v]
        if operands.get("edges") is not None:
            sums = sums + operands["edges"][rows[edges]]
        vectors = _activated(sums, arguments)
        if operands.get("activated") is not None:
            vectors = operands["activated"][rows[edges]] + vectors - vectors.detach()
        logits = (vectors * w).reshape(len(edges), heads, -1).sum(2)
        weights = logits.softmax(0)
        if operands.get("scores") is not None:
            saved, change = operands["scores"][1][:, rows[edges]].T, logits - logits.detach()
            weights = saved * (1 + change - (saved * change).sum(0))
        mask = operands.get("mask")
        kept = weights if mask is None else weights * mask[:, rows[edges]].T
        line = (kept[..., None] * sources.reshape(len(edges), heads, -1)).sum(0)
        lines.append(line.reshape(-1) if arguments.get("concat", True) else line.mean(0))
        parts.append(vectors)
        logits_of.append(logits)
        weights_of.append(weights)
    vectors, logits, weights = torch.cat(parts), torch.cat(logits_of), torch.cat(weights_of)
    back = torch.argsort(rows)  # from the order of indices to that of the rows of edges
    scores = torch.stack([logits[back].T, weights[back].T])
    return {"y": torch.stack(lines), "scores": scores, "activated": vectors[back]}


def graph_attention_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    names = [name for name in ("x", "target", "w", "edges") if operands.get(name) is not None]
    leaves = {name: operands[name].detach().clone().requires_grad_() for name in names}
    given = {**leaves, **{name: operands.get(name) for name in ("mask", "scores", "activated")}}
    y = graph_attention(given, arguments)["y"]
    found = torch.autograd.grad(y, tuple(leaves.values()), operands["dy"])
    return {f"d{name}": one for name, one in zip(names, found, strict=True)}


NEIGHBOURS = defined(globals())
