"""The sums of products of a convolution, which the legacy calls and the graphs of the fake share."""

from __future__ import annotations

from typing import Any

import numpy as np


def slide(result: str, arrays: dict[str, np.ndarray], layer: dict[str, Any]) -> None:
    """Go through all taps of the window, and add their products at all positions to the operand that is the
    result."""
    x, w, y = arrays["x"], arrays["w"], arrays["y"]
    groups = layer["groups"]
    filters, channels = y.shape[1] // groups, w.shape[1]
    axes = (0, *range(2, x.ndim))
    for tap in np.ndindex(*w.shape[2:]):
        positions, pixels = [], []
        for count, length, s, t, d, pad in zip(
            y.shape[2:], x.shape[2:], layer["stride"], tap, layer["dilation"], layer["padding"], strict=True
        ):
            offset = t * d - pad  # position p has pixel p * s + offset
            first, last = max(0, -(offset // s)), min(count - 1, (length - 1 - offset) // s)
            positions.append(slice(first, max(first, last + 1)))
            pixels.append(slice(first * s + offset, max(first, last + 1) * s + offset, s))
        if any(one.start == one.stop for one in positions):
            continue
        weight = tuple(n - 1 - t for n, t in zip(w.shape[2:], tap, strict=True)) if layer["flip"] else tap
        for g in range(groups):
            in_x = (slice(None), slice(g * channels, (g + 1) * channels), *pixels)
            in_w = (slice(g * filters, (g + 1) * filters), slice(None), *weight)
            in_y = (slice(None), slice(g * filters, (g + 1) * filters), *positions)
            if result == "y":
                y[in_y] += np.moveaxis(np.tensordot(x[in_x], w[in_w], (1, 1)), -1, 1)
            elif result == "x":
                x[in_x] += np.moveaxis(np.tensordot(y[in_y], w[in_w], (1, 0)), -1, 1)
            else:
                w[in_w] += np.tensordot(y[in_y], x[in_x], (axes, axes))
