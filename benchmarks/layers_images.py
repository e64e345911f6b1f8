"""Calls of image operations by PyTorch and by cudnn_ct: pooling and batch normalisation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harness.operands import Array, Operands
from harness.timing import Call
from layers_pair import Pair, Tensors
from layers_workload import Row

import cudnn_ct as ct

MOMENTUM, EPSILON = 0.1, 1e-5  # of batch normalisation


# --- pooling -----------------------------------------------------------------------------------------------


def pool(row: Row) -> Pair:
    parameters = row.parameters

    def theirs(operands: Operands) -> Call:
        xs, forward = operands.theirs["x"], _torch_pool(row)
        return lambda i: forward(xs[i])

    def ours(operands: Operands) -> Call:
        xs, outs, forward = operands.ours["x"], operands.ours["out"], ct.pool
        return lambda i: forward(xs[i], out=outs[i], **parameters)

    return Pair({"x": row.array(), "out": row.array(_pooled(row), empty=True)}, theirs, ours)


def pool_backward(row: Row) -> Pair:
    parameters, largest = row.parameters, row.parameters["mode"] == "max"
    y = row.array(_pooled(row))
    arrays = {"x": row.array(), "y": y, "dy": y, "out": row.array(empty=True)}

    def prepare(tensors: Tensors) -> None:
        forward = _torch_pool(row)
        for x, y in zip(tensors["x"], tensors["y"], strict=True):
            if largest:
                _make_distinct(x)
            y.copy_(forward(x))

    def theirs(operands: Operands) -> Call:
        dys, backward = operands.theirs["dy"], _torch_pool_gradient(row, operands.theirs["x"])
        return lambda i: backward(dys[i], i)

    def ours(operands: Operands) -> Call:
        xs, ys, dys, outs = (operands.ours[role] for role in arrays)
        backward = ct.pool_backward
        return lambda i: backward(dys[i], xs[i], ys[i], out=outs[i], **parameters)

    return Pair(arrays, theirs, ours, prepare, spare=("y",) if largest else ("x", "y"))


def _pooled(row: Row) -> tuple[int, ...]:
    geometry = {name: value for name, value in row.parameters.items() if name != "mode"}
    return ct.pool_output_shape(row.layer.x, **geometry)


def _torch_pool(row: Row) -> Callable[[Any], Any]:
    """Return PyTorch's pooling as networks call it. Max pooling also writes the indices."""
    import torch
    from torch.nn import functional

    window, stride, padding = _geometry(row)
    if row.parameters["mode"] == "max":
        return lambda x: torch.max_pool2d(x, window, stride, padding)
    if window == "global":
        return lambda x: functional.adaptive_avg_pool2d(x, 1)
    return lambda x: functional.avg_pool2d(x, window, stride, padding)


def _torch_pool_gradient(row: Row, xs: list[Any]) -> Callable[[Any, int], Any]:
    """Return the gradient of `_torch_pool` at the images ``xs``, as autograd computes it."""
    import torch

    aten = torch.ops.aten
    window, stride, padding = _geometry(row)
    if window == "global":  # the gradient of a mean is dy over the number of pixels
        shape, pixels = row.layer.x, row.layer.x[2] * row.layer.x[3]
        return lambda dy, _: dy.expand(shape) / pixels
    geometry = [window] * 2, [stride] * 2, [padding] * 2
    if row.parameters["mode"] == "max":
        more = *geometry, [1, 1], False
        where = [aten.max_pool2d_with_indices.default(x, *more)[1] for x in xs]
        backward = aten.max_pool2d_with_indices_backward.default
        return lambda dy, i: backward(dy, xs[i], *more, where[i])
    average = aten.avg_pool2d_backward.default
    return lambda dy, i: average(dy, xs[i], *geometry, False, True, None)


def _geometry(row: Row) -> tuple[Any, Any, int]:
    given = row.parameters
    return given["window"], given.get("stride", given["window"]), given.get("padding", 0)


def _make_distinct(x: Any) -> None:
    """Fill images with values that differ within each window, so that each maximum is unique."""
    import torch

    values = torch.arange(x.numel(), device=x.device).mul_(37).remainder_(251)
    x.copy_(values.reshape(x.shape))  # every dtype represents these values exactly


# --- batch normalisation -----------------------------------------------------------------------------------


def batch_norm_training(row: Row) -> Pair:
    mean, var = "running_mean", "running_var"
    arrays = {"x": row.array(), **_parameters(row, "scale", "bias", mean, var), "out": row.array(empty=True)}

    def theirs(operands: Operands) -> Call:
        import torch

        xs, scales, biases, means, variances = (operands.theirs[role] for role in list(arrays)[:5])
        norm = torch.batch_norm
        return lambda i: norm(
            xs[i], scales[i], biases[i], means[i], variances[i], True, MOMENTUM, EPSILON, True
        )

    def ours(operands: Operands) -> Call:
        xs, scales, biases, means, variances, outs = (operands.ours[role] for role in arrays)
        norm = ct.batch_norm_training
        return lambda i: norm(
            xs[i], scales[i], biases[i], running_mean=means[i], running_var=variances[i],
            momentum=MOMENTUM, epsilon=EPSILON, out=outs[i],
        )  # fmt: skip

    return Pair(arrays, theirs, ours, functools.partial(_make_positive, role=var), updated=(mean, var))


def batch_norm_inference(row: Row) -> Pair:
    arrays = {
        "x": row.array(),
        **_parameters(row, "scale", "bias", "mean", "var"),
        "out": row.array(empty=True),
    }

    def theirs(operands: Operands) -> Call:
        import torch

        xs, scales, biases, means, variances = (operands.theirs[role] for role in list(arrays)[:5])
        norm = torch.batch_norm
        return lambda i: norm(
            xs[i], scales[i], biases[i], means[i], variances[i], False, MOMENTUM, EPSILON, True
        )

    def ours(operands: Operands) -> Call:
        xs, scales, biases, means, variances, outs = (operands.ours[role] for role in arrays)
        norm = ct.batch_norm_inference
        return lambda i: norm(
            xs[i], scales[i], biases[i], means[i], variances[i], epsilon=EPSILON, out=outs[i]
        )

    return Pair(arrays, theirs, ours, functools.partial(_make_positive, role="var"))


def batch_norm_backward(row: Row) -> Pair:
    arrays = {
        "x": row.array(),
        "dy": row.array(),
        **_parameters(row, "scale", "mean", "invstd"),
        "out": row.array(empty=True),
    }

    def prepare(tensors: Tensors) -> None:
        for x, mean, invstd in zip(tensors["x"], tensors["mean"], tensors["invstd"], strict=True):
            single = x.float()
            mean.copy_(single.mean(dim=(0, 2, 3)))
            invstd.copy_((single.var(dim=(0, 2, 3), correction=0) + EPSILON).rsqrt())

    def ours(operands: Operands) -> Call:
        xs, dys, scales, means, inverses, outs = (operands.ours[role] for role in arrays)
        backward = ct.batch_norm_backward
        return lambda i: backward(
            dys[i], xs[i], scales[i], means[i], inverses[i], epsilon=EPSILON, out=outs[i]
        )

    return Pair(arrays, _torch_norm_gradient, ours, prepare)


def _torch_norm_gradient(operands: Operands) -> Call:
    """Return the gradient by the implementation that PyTorch's forward pass chose for these operands."""
    import torch

    aten = torch.ops.aten
    xs, dys, scales = (operands.theirs[role] for role in ("x", "dy", "scale"))
    saved = []
    for x, scale in zip(xs, scales, strict=True):
        mean, var = torch.zeros_like(scale), torch.ones_like(scale)
        done = aten._batch_norm_impl_index.default(x, scale, mean, mean, var, True, MOMENTUM, EPSILON, True)
        saved.append((mean, var, *done[1:]))
    native, cudnn = aten.native_batch_norm_backward.default, aten.cudnn_batch_norm_backward.default

    def by_native(i: int) -> Any:
        mean, var, batch_mean, invstd, *_ = saved[i]
        return native(
            dys[i], xs[i], scales[i], mean, var, batch_mean, invstd, True, EPSILON, [True, True, True]
        )

    def by_cudnn(i: int) -> Any:
        mean, var, batch_mean, invstd, reserve, _ = saved[i]
        return cudnn(xs[i], dys[i], scales[i], mean, var, batch_mean, invstd, EPSILON, reserve)

    return by_cudnn if saved[0][-1] == 1 else by_native


def _parameters(row: Row, *roles: str) -> dict[str, Array]:
    return dict.fromkeys(roles, Array((row.layer.x[1],), "float32"))


def _make_positive(tensors: Tensors, role: str) -> None:
    for tensor in tensors[role]:
        tensor.uniform_(0.5, 1.5)
