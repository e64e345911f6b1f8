"""The answer of an independent implementation, and the arguments of public calls in one form.

Nothing here computes a result: `by_torch` and `by_loops` do that, each by itself. `magnitude` has the sizes that
errors are measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Operands = Mapping[str, Any]
Arguments = Mapping[str, Any]
Values = dict[str, np.ndarray]
Pairs = list[tuple[int, int]]


class Answer(NamedTuple):
    """The right result of a call, before ``alpha * value + beta * out`` and before rounding.

    Attributes
    ----------
    value : numpy.ndarray of float64; int64 for positions
    scale : numpy.ndarray of float64, shape of value
        A careful implementation that computes with the unit roundoff u has ``|got - value| <= c * u * scale``
        for a small c. It is 0 where the value is exact, or not finite.
    exact_only : bool
        The result has to be equal, as positions have to be.
    ambiguous : numpy.ndarray of bool, shape of value, optional
        Elements that the documentation leaves open: the choice between equal elements, for example.
    """

    value: np.ndarray
    scale: np.ndarray
    exact_only: bool = False
    ambiguous: np.ndarray | None = None


Solver = Callable[[Operands, Arguments], dict[str, Answer]]


class Geometry(NamedTuple):
    """A window that moves over an image: one number for each spatial axis, one pair for padding."""

    window: list[int]
    stride: list[int]
    dilation: list[int]
    padding: Pairs

    def out(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of places that the window has on each spatial axis."""
        axes = zip(sizes, self.window, self.stride, self.dilation, self.padding, strict=True)
        return [(n + before + after - (k - 1) * d - 1) // s + 1 for n, k, s, d, (before, after) in axes]


class Conv(NamedTuple):
    """The parameters of a convolution; ``flip`` is for mode "convolution"."""

    geometry: Geometry
    groups: int
    flip: bool


def named(value: Any, default: str) -> str:
    """Return the name that an argument gives, in lower case."""
    return default if value is None else str(value).lower()


def per_axis(value: Any, axes: int) -> list[int]:
    """Return one int for each axis."""
    return [int(value)] * axes if np.ndim(value) == 0 else [int(n) for n in value]


def padding_pairs(padding: Any, window: Sequence[int], dilation: Sequence[int]) -> Pairs:
    """Return the padding before and after each spatial axis.

    >>> padding_pairs("half", [3, 4], [1, 1]), padding_pairs("full", [3, 2], [1, 2])
    ([(1, 1), (2, 2)], [(2, 2), (2, 2)])
    """
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        if padding.lower() == "valid":
            return [(0, 0)] * len(spans)
        return [(n // 2, n // 2) if padding.lower() == "half" else (n - 1, n - 1) for n in spans]
    if np.ndim(padding) == 2:
        return [(int(before), int(after)) for before, after in padding]
    return [(n, n) for n in per_axis(padding, len(window))]


def conv_parameters(window: Sequence[int], arguments: Arguments) -> Conv:
    """Return the parameters of a convolution whose filter has this window."""
    axes = len(window)
    dilation = per_axis(arguments.get("dilation", 1), axes)
    geometry = Geometry(
        list(window),
        per_axis(arguments.get("stride", 1), axes),
        dilation,
        padding_pairs(arguments.get("padding", 0), window, dilation),
    )
    flip = named(arguments.get("mode"), "cross_correlation") == "convolution"
    return Conv(geometry, int(arguments.get("groups", 1)), flip)


def conv_transpose_shape(x: Sequence[int], w: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the image whose convolution with w has the shape of x."""
    (window, stride, dilation, padding), groups, _ = conv_parameters(w[2:], arguments)
    extra = per_axis(arguments.get("output_padding", 0), len(window))
    axes = zip(x[2:], window, stride, dilation, padding, extra, strict=True)
    sizes = [(n - 1) * s - sum(pair) + (k - 1) * d + 1 + more for n, k, s, d, pair, more in axes]
    return (x[0], w[1] * groups, *sizes)


def pool_geometry(shape: Sequence[int], arguments: Arguments) -> Geometry:
    """Return the window of a pooling of an image of this shape."""
    sizes, window = list(shape[2:]), arguments["window"]
    window = sizes if isinstance(window, str) else per_axis(window, len(sizes))
    stride, ones = arguments.get("stride"), [1] * len(sizes)
    strides = window if stride is None else per_axis(stride, len(sizes))
    return Geometry(window, strides, ones, padding_pairs(arguments.get("padding", 0), window, ones))


def pool_mode(arguments: Arguments) -> str:
    """Return "max", "average_inc_pad", "average_exc_pad" or "sum"."""
    mode = named(arguments.get("mode"), "max")
    others = {
        "max_deterministic": "max",
        "average": "average_inc_pad",
        "average_count_include_padding": "average_inc_pad",
        "average_count_exclude_padding": "average_exc_pad",
    }
    return others.get(mode, mode)


def propagates(arguments: Arguments) -> bool:
    """Return whether NaN is an extreme."""
    return named(arguments.get("nan"), "propagate") in ("propagate", "propagate_nan")


def axes_of(value: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, in order; all of them for None."""
    if value is None:
        return tuple(range(ndim))
    values = [value] if np.ndim(value) == 0 else list(value)
    return tuple(sorted(int(axis) % ndim for axis in values))


def softmax_axes(ndim: int, arguments: Arguments) -> tuple[int, ...]:
    """Return the axes that a softmax sums over."""
    if arguments.get("axis") is not None:
        return axes_of(arguments["axis"], ndim)
    return (1,) if named(arguments.get("mode"), "channel") == "channel" else tuple(range(1, ndim))


def norm_axes(ndim: int, arguments: Arguments) -> tuple[int, ...]:
    """Return the axes that a batch normalisation takes its statistics over."""
    spatial = named(arguments.get("mode"), "spatial").startswith("spatial")
    return (0, *range(2, ndim)) if spatial else (0,)


def norm_shape(shape: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the statistics: that of x, with 1 for the axes that they are over."""
    axes = norm_axes(len(shape), arguments)
    return tuple(1 if axis in axes else n for axis, n in enumerate(shape))


def transformed_shape(shape: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the result of a spatial transformer."""
    scales = (float(arguments.get("scale_height", 1)), float(arguments.get("scale_width", 1)))
    sizes = [int(np.ceil(n * scale)) for n, scale in zip(shape[2:], scales, strict=True)]
    return (*shape[:2], *sizes)
