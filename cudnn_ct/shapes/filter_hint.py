"""Which usual mistake explains that filters do not fit an image."""

from __future__ import annotations

__all__ = ["filter_hint"]

Axes = tuple[int, ...]


def filter_hint(x: Axes, w: Axes, groups: int) -> str:
    """Return the correction after which filters of shape ``w`` fit ``x``; empty if none explains it.

    The corrections are a batch axis, axes in the order of other libraries, exchanged operands, and groups.
    """
    if len(w) == len(x) + 1 and x[0] == w[1] * groups:
        return f"; x seems to have no batch axis: pass x.reshape{(1, *x)}"
    if len(w) != len(x):
        return ""
    axes = len(x) - 2
    as_is, last = tuple(range(axes + 2)), (0, axes + 1, *range(1, axes + 1))
    first = (axes + 1, axes, *range(axes))  # (*window, C, K), as of JAX and TensorFlow
    for x_order, w_order in ((as_is, last), (as_is, first), (last, as_is), (last, last), (last, first)):
        if _fits(_permuted(x, x_order), _permuted(w, w_order), groups):
            wrong = [pair for pair in (("x", x_order), ("w", w_order)) if pair[1] != as_is]
            views = " and ".join(f"{name}.transpose{order}" for name, order in wrong)
            return f"; the channels seem to be on another axis: pass {views} (permute in torch)"
    if _fits(w, x, groups):
        return "; x and w seem to be swapped: x is the first operand"
    if w[1] == 1 and x[1] and w[0] % x[1] == 0:
        return f"; write groups={x[1]} for a depthwise convolution"
    return ""


def _permuted(shape: Axes, order: Axes) -> Axes:
    return tuple(shape[axis] for axis in order)


def _fits(x: Axes, w: Axes, groups: int) -> bool:
    return x[1] == w[1] * groups and all(n >= k for n, k in zip(x[2:], w[2:], strict=True))
