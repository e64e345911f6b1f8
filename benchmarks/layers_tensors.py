"""Calls for arrays of any shape by PyTorch and by cudnn_ct: softmax, activation, reduction, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from harness.operands import Array, Operands
from harness.timing import Call
from layers_pair import Pair, Tensors
from layers_workload import Row

import cudnn_ct as ct

COEFS = {"elu": 1.0, "swish": 1.0}  # PyTorch's defaults; the other modes have no coefficient
# Modes with gradients that autograd computes from the result. The other modes need x.
FROM_RESULT = ("relu", "sigmoid", "tanh")


# --- softmax -----------------------------------------------------------------------------------------------


def softmax(row: Row) -> Pair:
    parameters = row.parameters

    def theirs(operands: Operands) -> Call:
        xs, forward = operands.theirs["x"], _torch_softmax(row)
        return lambda i: forward(xs[i])

    def ours(operands: Operands) -> Call:
        xs, outs, forward = operands.ours["x"], operands.ours["out"], ct.softmax
        return lambda i: forward(xs[i], out=outs[i], **parameters)

    return Pair({"x": row.array(), "out": row.array(empty=True)}, theirs, ours)


def softmax_backward(row: Row) -> Pair:
    parameters, axis = row.parameters, row.parameters["axis"]
    arrays = {"y": row.array(), "dy": row.array(), "out": row.array(empty=True)}

    def prepare(tensors: Tensors) -> None:
        forward = _torch_softmax(row)
        for y in tensors["y"]:
            y.copy_(forward(y))

    def theirs(operands: Operands) -> Call:
        import torch

        ys, dys, dtype = operands.theirs["y"], operands.theirs["dy"], getattr(torch, row.kind.dtype)
        log = "_log" if parameters["algo"] == "log" else ""
        backward = getattr(torch.ops.aten, f"{log}_softmax_backward_data").default
        return lambda i: backward(dys[i], ys[i], axis, dtype)

    def ours(operands: Operands) -> Call:
        ys, dys, outs = (operands.ours[role] for role in arrays)
        backward = ct.softmax_backward
        return lambda i: backward(dys[i], ys[i], out=outs[i], **parameters)

    return Pair(arrays, theirs, ours, prepare)


def _torch_softmax(row: Row) -> Callable[[Any], Any]:
    import torch

    axis = row.parameters["axis"]
    forward = torch.log_softmax if row.parameters["algo"] == "log" else torch.softmax
    return lambda x: forward(x, axis)


# --- activation --------------------------------------------------------------------------------------------


def activation(row: Row) -> Pair:
    mode = row.parameters["mode"]
    coefficient = COEFS.get(mode, 0.0)

    def theirs(operands: Operands) -> Call:
        xs, forward = operands.theirs["x"], _torch_activation(mode)
        return lambda i: forward(xs[i])

    def ours(operands: Operands) -> Call:
        xs, outs, forward = operands.ours["x"], operands.ours["out"], ct.activation
        return lambda i: forward(xs[i], mode=mode, coefficient=coefficient, out=outs[i])

    return Pair({"x": row.array(), "out": row.array(empty=True)}, theirs, ours)


def activation_backward(row: Row) -> Pair:
    mode = row.parameters["mode"]
    coefficient = COEFS.get(mode, 0.0)
    arrays = {"x": row.array(), "y": row.array(), "dy": row.array(), "out": row.array(empty=True)}

    def prepare(tensors: Tensors) -> None:
        forward = _torch_activation(mode)
        for x, y in zip(tensors["x"], tensors["y"], strict=True):
            y.copy_(forward(x))

    def theirs(operands: Operands) -> Call:
        given = operands.theirs["y" if mode in FROM_RESULT else "x"]
        dys, backward = operands.theirs["dy"], _torch_activation_gradient(mode)
        return lambda i: backward(dys[i], given[i])

    def ours(operands: Operands) -> Call:
        xs, ys, dys, outs = (operands.ours[role] for role in arrays)
        backward = ct.activation_backward
        return lambda i: backward(dys[i], xs[i], ys[i], mode=mode, coefficient=coefficient, out=outs[i])

    return Pair(arrays, theirs, ours, prepare, spare=("x",) if mode in FROM_RESULT else ("y",))


def _torch_activation(mode: str) -> Callable[[Any], Any]:
    import torch
    from torch.nn import functional

    modes = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
    return {**modes, "elu": functional.elu, "swish": functional.silu}[mode]


def _torch_activation_gradient(mode: str) -> Callable[[Any, Any], Any]:
    """Return the gradient as a function of dy and the array that autograd keeps: the result, or x."""
    import torch

    aten = torch.ops.aten
    relu, elu = aten.threshold_backward.default, aten.elu_backward.default
    return {
        "relu": lambda dy, y: relu(dy, y, 0),
        "sigmoid": aten.sigmoid_backward.default,
        "tanh": aten.tanh_backward.default,
        "elu": lambda dy, x: elu(dy, 1, 1, 1, False, x),
        "swish": aten.silu_backward.default,
    }[mode]


# --- reduction ---------------------------------------------------------------------------------------------


def reduce(row: Row) -> Pair:
    parameters, axis = row.parameters, row.parameters["axis"]
    arrays = {"x": row.array()}
    if axis is not None:  # a full reduction has one element, which the call allocates
        gone = {i % len(row.layer.x) for i in (axis if isinstance(axis, tuple) else (axis,))}
        shape = [n for i, n in enumerate(row.layer.x) if i not in gone]
        arrays["out"] = row.array(shape, empty=True)

    def theirs(operands: Operands) -> Call:
        xs, fold = operands.theirs["x"], _torch_reduction(**parameters)
        return lambda i: fold(xs[i])

    def ours(operands: Operands) -> Call:
        xs, fold = operands.ours["x"], ct.reduce_with_indices if parameters.get("indices") else ct.reduce
        outs = operands.ours.get("out") or [None] * len(xs)
        return lambda i: fold(xs[i], out=outs[i], op=parameters["op"], axis=axis)

    return Pair(arrays, theirs, ours, matched=_with_positions if parameters.get("indices") else None)


def _torch_reduction(op: str, axis: Any, indices: bool = False) -> Callable[[Any], Any]:
    """Return PyTorch's fastest form: the maximum without its index, the maximum absolute value as a norm."""
    import torch

    norm = torch.linalg.vector_norm
    return {
        "add": lambda x: torch.sum(x, axis),
        "average": lambda x: torch.mean(x, axis),
        "max": lambda x: tuple(torch.max(x, axis)) if indices else torch.amax(x, axis),
        "norm2": lambda x: norm(x, 2, axis),
        "amax": lambda x: norm(x, math.inf, axis),
    }[op]


def _with_positions(ours: list[Any], theirs: list[Any], tensors: Tensors) -> Iterator[tuple[Any, Any]]:
    """Yield pairs to compare. If the maximum is not unique, any of its positions is accepted."""
    (largest, where), x = ours, tensors["x"][0]
    yield largest, theirs[0]
    yield x.gather(-1, where.long().unsqueeze(-1)).squeeze(-1), theirs[0]


# --- dropout -----------------------------------------------------------------------------------------------


def dropout(row: Row) -> Pair:
    p = row.parameters["p"]
    arrays = {"x": row.array(), "out": row.array(empty=True), "made": _mask(row)}

    def theirs(operands: Operands) -> Call:
        import torch

        xs, drop = operands.theirs["x"], torch.native_dropout
        return lambda i: drop(xs[i], p, True)

    def ours(operands: Operands) -> Call:
        xs, outs, drop, state = operands.ours["x"], operands.ours["out"], ct.dropout, ct.DropoutState(p)
        return lambda i: drop(xs[i], state, out=outs[i])

    return Pair(arrays, theirs, ours, matched=_some_dropped("x", p))


def dropout_backward(row: Row) -> Pair:
    p = row.parameters["p"]
    arrays = {"dy": row.array(), "mask": _mask(row), "out": row.array(empty=True)}

    def theirs(operands: Operands) -> Call:
        import torch

        dys, backward = operands.theirs["dy"], torch.ops.aten.native_dropout_backward.default
        masks = [torch.native_dropout(dy, p, True)[1] for dy in dys]
        return lambda i: backward(dys[i], masks[i], 1 / (1 - p))

    def ours(operands: Operands) -> Call:
        dys, _, outs = (operands.ours[role] for role in arrays)
        backward, state = ct.dropout_backward, ct.DropoutState(p)
        masks = [ct.dropout(dy, state, out=out)[1] for dy, out in zip(dys, outs, strict=True)]
        return lambda i: backward(dys[i], masks[i], state, out=outs[i])

    return Pair(arrays, theirs, ours, matched=_some_dropped("dy", p))


def _mask(row: Row) -> Array:
    """Return a mask with a bit for each element, of a dtype that both sides have."""
    return Array((math.ceil(math.prod(row.layer.x) / 16),), "float16", empty=True)


def _some_dropped(role: str, p: float) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """Return a check that 1 - p of the elements are kept and scaled. Each side draws its own elements."""

    def matched(ours: list[Any], _: list[Any], tensors: Tensors) -> Iterator[tuple[Any, Any]]:
        import torch

        given, found = tensors[role][0], ours[0]
        left = float((found != 0).float().mean())
        if abs(left - (1 - p)) > 0.02:
            raise ValueError(f"{left:.3f} of the elements are kept, expected {1 - p:.3f}")
        yield found, torch.where(found != 0, given.float() / (1 - p), 0)

    return matched


# --- two operands ------------------------------------------------------------------------------------------


def add(row: Row) -> Pair:
    def ours(operands: Operands) -> Call:
        a, b, outs = (operands.ours[role] for role in ("a", "b", "out"))
        both = ct.add
        return lambda i: both(a[i], b[i], out=outs[i])

    return _of_two(row, "add", ours)


def op_tensor(row: Row) -> Pair:
    op = row.parameters["op"]

    def ours(operands: Operands) -> Call:
        a, b, outs = (operands.ours[role] for role in ("a", "b", "out"))
        both = ct.op_tensor
        return lambda i: both(a[i], b[i], op=op, out=outs[i])

    return _of_two(row, op, ours)


def _of_two(row: Row, op: str, ours: Callable[[Operands], Call]) -> Pair:
    arrays = {"a": row.array(), "b": row.array(row.parameters["b"]), "out": row.array(empty=True)}

    def theirs(operands: Operands) -> Call:
        import torch

        a, b, both = operands.theirs["a"], operands.theirs["b"], getattr(torch, op)
        return lambda i: both(a[i], b[i])

    return Pair(arrays, theirs, ours)
