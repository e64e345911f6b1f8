"""Group normalisation and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tests.oracle.answer import Arguments, Operands, Table, Values
from tests.oracle.moments import Statistics, batch_statistics, moments, open_constants
from tests.oracle.recipes import (
    FLOATS,
    HALF,
    Case,
    Recipe,
    Source,
    centre,
    gradient_case,
    gradient_of,
    long_image,
    pick,
)

from ._operation import Door, Operation, same

Tensors = dict[str, Any]

# --- how calls are drawn -----------------------------------------------------------------------------------


def _drawn(source: Source) -> Recipe:
    dtype, channels = source.choice(FLOATS), source.choice((1, 2, 3, 4, 6, 8, 12, 16, 32))
    divisors = [one for one in range(1, channels + 1) if channels % one == 0]
    groups = source.choice((1, channels, *divisors))
    axes = source.choice((0, 1, 2, 2, 2, 3, 4))
    longest = 1 if source.chance(0.1) else (1, 9, 9, 5, 3)[axes]
    size = tuple(0 if source.chance(0.01) else source.randint(1, longest) for _ in range(axes))
    images = 0 if source.chance(0.02) else source.randint(1, 4)
    shape, wide = (images, channels, *size), "float32" if dtype in HALF else dtype
    operands = {"x": (shape, dtype, centre(source))}
    operands |= dict.fromkeys(("scale", "bias"), (shape[1:2], wide, "normal"))
    arguments = {"groups": groups, "epsilon": source.choice((1e-5, 1e-2))}
    more = dict.fromkeys(("mean", "invstd"), ((images, groups), wide))
    return Recipe(operands, arguments, (shape, dtype), scaled=False, more=more)


def _drawn_backward(source: Source) -> Recipe:
    """Statistics have an epsilon that shows whether the call reads them."""
    return gradient_of(source, "group_norm", _drawn(source), (1e-5, 1e-1))


def _large(source: Source, most: int, gradient: bool) -> Recipe:
    """A call whose sums are long."""
    shape, dtype = long_image(source, most // 2), source.choice(FLOATS)
    shape, wide = (max(2, shape[0]), *shape[1:]), "float32" if dtype in HALF else dtype
    groups = source.choice([n for n in range(1, shape[1] + 1) if shape[1] % n == 0])
    operands = {"dy": (shape, dtype, "normal")} if gradient else {}
    operands |= {"x": (shape, dtype, "normal"), "scale": (shape[1:2], wide, "normal")}
    if not gradient:
        operands["bias"] = (shape[1:2], wide, "normal")
    return Recipe(operands, {"epsilon": 1e-5, "groups": groups})


def _case(rng: np.random.Generator) -> Case:
    groups = int(rng.integers(1, 4))
    sizes = tuple(map(int, rng.integers(0, 5, rng.integers(0, 5))))
    shape = (pick(rng, 0, 1, 3), groups * int(rng.integers(1, 4)), *sizes)
    operands = {
        "x": rng.normal(size=shape) + pick(rng, 0, 100),
        "scale": rng.normal(size=shape[1]),
        "bias": rng.normal(size=shape[1]),
    }
    return operands, {"groups": groups, "epsilon": pick(rng, 0.01, 0.1)}


def _case_backward(rng: np.random.Generator) -> Case:
    return gradient_case(rng, _by_loops, *_case(rng))


# --- by loops: one group after another ---------------------------------------------------------------------


def _groups(x: np.ndarray, arguments: Arguments) -> Iterator[tuple[tuple[int, int], tuple[int, slice]]]:
    """Yield the index (image, group) of each group, and the index of its elements in x."""
    groups = int(arguments.get("groups", 1))
    size = x.shape[1] // groups
    for image, group in np.ndindex(x.shape[0], groups):
        yield (image, group), (image, slice(group * size, (group + 1) * size))


def _parameter(parameter: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(parameter.reshape(-1, *(1,) * (x.ndim - 2)), x.shape)


def _by_loops(operands: Operands, arguments: Arguments) -> Values:
    x = operands["x"]
    scale, bias = (_parameter(operands[name], x) for name in ("scale", "bias"))
    mean, invstd = np.zeros((2, x.shape[0], int(arguments.get("groups", 1))))
    y = np.zeros(x.shape)
    for at, own in _groups(x, arguments):
        mean[at], var = (moment.item() for moment in moments(x[own].reshape(1, -1)))
        invstd[at] = 1 / np.sqrt(var + arguments.get("epsilon", 1e-5))
        y[own] = scale[own] * (x[own] - mean[at]) * invstd[at] + bias[own]
    return {"y": y, "mean": mean, "invstd": invstd}


def _by_loops_backward(operands: Operands, arguments: Arguments) -> Values:
    x, dy, statistics = operands["x"], operands["dy"], operands
    if operands.get("mean") is None:
        statistics = _by_loops({**operands, "bias": operands["scale"]}, arguments)
    scaled, normal, dx = _parameter(operands["scale"], x) * dy, np.zeros(x.shape), np.zeros(x.shape)
    for at, own in _groups(x, arguments):
        count, invstd = np.float64(x[own].size), statistics["invstd"][at]
        normal[own] = (x[own] - statistics["mean"][at]) * invstd
        crossed = (scaled[own] * normal[own]).sum() / count
        dx[own] = invstd * (scaled[own] - scaled[own].sum() / count - normal[own] * crossed)
    axes = (0, *range(2, x.ndim))
    return {"dx": dx, "dscale": (dy * normal).sum(axes), "dbias": dy.sum(axes)}


# --- by PyTorch --------------------------------------------------------------------------------------------


def _by_torch(operands: Tensors, arguments: Arguments) -> Tensors:
    import torch

    x, groups = operands["x"], int(arguments.get("groups", 1))
    n, channels, *size = x.shape
    if not x.numel():
        missing = x.new_full((n, groups), torch.nan)
        return {"y": x, "mean": missing, "invstd": missing}
    # functional.group_norm rejects groups of one element.
    facts = (n, channels, prod(size), groups, float(arguments.get("epsilon", 1e-5)))
    y, mean, invstd = torch.native_group_norm(x.contiguous(), operands["scale"], operands["bias"], *facts)
    return {"y": y, "mean": mean, "invstd": invstd}


def _by_torch_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    import torch

    x, dy, scale = (operands[name].contiguous() for name in ("x", "dy", "scale"))
    if not x.numel():
        return {"dx": x, "dscale": torch.zeros_like(scale), "dbias": torch.zeros_like(scale)}
    statistics = operands
    if operands.get("mean") is None:
        statistics = _by_torch({**operands, "bias": scale}, arguments)
    mean, invstd = (statistics[name].contiguous() for name in ("mean", "invstd"))
    facts = (*x.shape[:2], prod(x.shape[2:]), mean.shape[1], [True, True, True])
    backward = torch.ops.aten.native_group_norm_backward
    return dict(zip(("dx", "dscale", "dbias"), backward(dy, x, mean, invstd, scale, *facts), strict=True))


# --- sizes of errors: batch normalisation of one image, whose channels are groups --------------------------


class _Groups(Statistics):
    """Operands (1, N * groups, C / groups, pixels), without scale and bias, which belong to channels."""

    def __init__(self, operands: Operands, arguments: Arguments, mean: Any, invstd: Any) -> None:
        n, channels, *size = self.image = operands["x"].shape
        groups = int(arguments.get("groups", 1))
        self.channels, rows = (1, channels, *(1 for _ in size)), (1, n * groups, channels // groups)
        x = operands["x"].reshape(*rows, prod(size))
        if mean is None:
            mean, invstd = batch_statistics(x, arguments)
        super().__init__({"x": x, "scale": np.ones(rows[:2])}, arguments, mean, invstd)

    def of_channels(self, parameter: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.abs(parameter).reshape(self.channels), self.image)

    def gradient(self, d: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """Return the size of dx for the one of ``scale * dy``, with ``parts`` in place of ``normal``."""
        d = d.reshape(self.x.shape)
        crossed = parts * self.average(d * self.normal) + self.normal * self.average(d * parts)
        return (self.invstd * (d + self.average(d) + crossed)).reshape(self.image)


def _scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    at = _Groups(operands, arguments, values["mean"], values["invstd"])
    normal = (at.parts + at.normal * at.spread).reshape(at.image)
    return {
        "y": at.of_channels(operands["scale"]) * normal + at.of_channels(operands["bias"]),
        "mean": at.average(np.abs(at.x)).reshape(values["mean"].shape),
        "invstd": (at.invstd * at.spread).reshape(values["invstd"].shape),
    }


def _scale_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    given, dy = operands.get("mean"), np.abs(operands["dy"])
    at = _Groups(operands, arguments, given, operands.get("invstd"))
    parts, axes = at.parts if given is not None else at.parts * at.spread, (0, *range(2, dy.ndim))
    return {
        "dx": at.gradient(at.of_channels(operands["scale"]) * dy, parts),
        "dscale": (dy * parts.reshape(at.image)).sum(axes),
        "dbias": dy.sum(axes),
    }


def _rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """``scale * dy`` is rounded to the dtype of x, in float16 with fewer digits below 2**-14."""
    at = _Groups(operands, arguments, operands.get("mean"), operands.get("invstd"))
    d = np.maximum(at.of_channels(operands["scale"]) * np.abs(operands["dy"]), 2.0**-14)
    return {"dx": at.gradient(d, at.normal)}


def _open(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Groups of which the mean has too few correct digits, as in :func:`open_constants`."""
    if operands.get("invstd") is not None or not operands["x"].size:
        return {}
    at = _Groups(operands, arguments, None, None)
    lost = open_constants(table, {"x": at.x}, arguments, {"dx": at.x, "invstd": at.invstd})
    elements, axes = lost["dx"].reshape(at.image), (0, *range(2, len(at.image)))
    masks = {"y": elements, "dx": elements, "invstd": lost["invstd"], "dscale": elements.any(axes)}
    return {name: mask.reshape(values[name].shape) for name, mask in masks.items() if name in values}


OPERATIONS = {
    "group_norm": Operation(
        draw=_drawn,
        large=partial(_large, gradient=False),
        case=_case,
        by_loops=_by_loops,
        by_torch=_by_torch,
        scale=_scale,
        open=_open,
        factor=64,
        jitted=Door(("x", "scale", "bias"), same("groups", "epsilon"), "y"),
        c_calls=8,
    ),
    "group_norm_backward": Operation(
        draw=_drawn_backward,
        large=partial(_large, gradient=True),
        case=_case_backward,
        by_loops=_by_loops_backward,
        by_torch=_by_torch_backward,
        scale=_scale_backward,
        open=_open,
        rounded=_rounded,
        factor=64,
        roundings=4,  # one more than batch_norm_backward, which reads scale * dy
        c_calls=14,
    ),
}
