"""Pooling problems: modes, window geometry and output shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Never

from .._hints import UNSET, corrected, known_keywords
from ..typing import Padding, PerAxis
from .checks import FLOATS, Outs, Specs, batch_hint, check_images, one_dtype, result_spec
from .conv import Pairs, pad_pairs
from .layer import LayerProblem
from .parse import as_bool, as_choice, as_list, per_axis
from .specs import Shape

POOLING_MODES = ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")

# Accepted aliases: the short name, and cuDNN's names.
_SYNONYMS = {
    "average": "average_inc_pad",
    "average_count_include_padding": "average_inc_pad",
    "average_count_exclude_padding": "average_exc_pad",
}


class PoolGeometry(NamedTuple):
    """Window, padding and stride, per spatial axis; padding is a pair (before, after)."""

    window: Shape
    padding: Pairs
    stride: Shape


class PoolParams(NamedTuple):
    """Parameters of a pooling; ``mode`` is one of :data:`POOLING_MODES`."""

    geometry: PoolGeometry
    mode: str
    propagate_nan: bool


def pool_problem(
    specs: Specs, outs: Outs, window: Any, stride: Any, padding: Any, mode: Any, propagate_nan: Any
) -> LayerProblem[PoolParams]:
    """Validate the arguments of pooling x, or of the gradient with x, y and dy."""
    name = as_choice(mode, (*POOLING_MODES, *_SYNONYMS), "mode")
    x, mode, gradient = specs["x"], _SYNONYMS.get(name, name), "dy" in specs
    what = "the gradient of pooling" if gradient else f"pooling with mode={mode!r}"
    # Averages of int8 would need rounding.
    allowed = FLOATS if gradient or not mode.startswith("max") else (*FLOATS, "int8")
    one_dtype(what, allowed, **{name: spec.dtype for name, spec in specs.items()})
    geometry = pool_geometry(x.shape, window, stride, padding)
    y_shape = pool_output_shape(x.shape, window=window, stride=stride, padding=padding)
    for name in ("y", "dy") if gradient else ():
        if specs[name].shape != y_shape:
            raise ValueError(
                f"{name} has shape {specs[name].shape}; pooling x of shape {x.shape} with window "
                f"{geometry.window}, stride {geometry.stride} and padding {geometry.padding} gives {y_shape}"
            )
    result = result_spec(x.shape if gradient else y_shape, *specs.values(), out=outs[0])
    params = PoolParams(geometry, mode, as_bool(propagate_nan, "propagate_nan"))
    return LayerProblem.of("pooling", params, specs, result)


@known_keywords
def pool_output_shape(
    x_shape: Iterable[int],
    *more: Never,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    **unknown: Never,
) -> Shape:
    """Return the shape of ``pool(x)``, without a device.

    Parameters
    ----------
    x_shape : (N, C, *spatial), with 1 to 3 spatial axes
    window, stride, padding
        As in :func:`cudnn_ct.pool`.

    Returns
    -------
    tuple of int
        (N, C, *out), where each ``out = (n + before + after - window) // stride + 1``.

    Raises
    ------
    TypeError, ValueError
        The window does not fit the image, or the padding does not fit the window.

    Examples
    --------
    >>> pool_output_shape((8, 64, 112, 112), window=3, stride=2, padding=1)
    (8, 64, 56, 56)
    >>> pool_output_shape((8, 2048, 7, 7), window="global")
    (8, 2048, 1, 1)
    """
    if more or unknown or x_shape is UNSET or window is UNSET:
        return corrected(pool_output_shape, locals())
    windows, pairs, strides = pool_geometry(x_shape, window, stride, padding)
    x = check_images(x_shape)
    axes = zip(x[2:], pairs, windows, strides, strict=True)
    return (*x[:2], *((n + sum(pair) - k) // s + 1 for n, pair, k, s in axes))


def pool_geometry(x_shape: Iterable[int], window: Any, stride: Any, padding: Any) -> PoolGeometry:
    """Parse window, stride and padding; raise unless every window overlaps the image."""
    x = check_images(x_shape)
    if 0 in x[2:]:
        raise ValueError(f"x has shape {x}; each spatial axis needs an element")
    windows = _window(window, x)
    axes = len(windows)
    strides = windows if stride is None else per_axis(stride, axes, "stride", 1)
    pairs = pad_pairs(padding, windows, (1,) * axes)
    for axis, (n, k, pair) in enumerate(zip(x[2:], windows, pairs, strict=True)):
        if max(pair) >= k:  # otherwise a window could contain nothing but padding
            raise ValueError(f"padding {pair} of spatial axis {axis} must be smaller than the window, {k}")
        if n + sum(pair) < k:
            raise ValueError(
                f"the window of {k} is larger than spatial axis {axis}: the input has {n} + padding "
                f"{sum(pair)} = {n + sum(pair)}"
            )
    return PoolGeometry(windows, pairs, strides)


def _window(window: Any, x: Shape) -> Shape:
    if isinstance(window, str):
        if window.lower() != "global":
            raise ValueError(f"window must be an int, one int per spatial axis or 'global': got {window!r}")
        return x[2:]
    window = as_list(window)
    if isinstance(window, Sequence) and len(window) != len(x) - 2:
        raise ValueError(
            f"window {window!r} has {len(window)} axes; x of shape {x} has {len(x) - 2} spatial axes"
            f"{batch_hint('x', x, len(window) + 2)}"
        )
    return per_axis(window, len(x) - 2, "window", 1)
