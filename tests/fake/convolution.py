"""The sums of products of a convolution, which the legacy calls and the graphs of the fake share."""

from __future__ import annotations

from typing import Any

import numpy as np


def slide(result: str, arrays: dict[str, np.ndarray], layer: dict[str, Any]) -> None:
    """Go through all products of a convolution, one place of the window after the other, and add each of them
    to the operand that is the result."""
    x, w, y = arrays["x"], arrays["w"], arrays["y"]
    groups = layer["groups"]
    filters, channels = y.shape[1] // groups, w.shape[1]
    for position in np.ndindex(*y.shape[2:]):
        for tap in np.ndindex(*w.shape[2:]):
            at = [
                p * s + t * d - pad
                for p, s, t, d, pad in zip(
                    position, layer["stride"], tap, layer["dilation"], layer["padding"], strict=True
                )
            ]
            if any(not 0 <= i < n for i, n in zip(at, x.shape[2:], strict=True)):
                continue
            weight = tuple(n - 1 - t for n, t in zip(w.shape[2:], tap, strict=True)) if layer["flip"] else tap
            for g in range(groups):
                in_x = (slice(None), slice(g * channels, (g + 1) * channels), *at)
                in_w = (slice(g * filters, (g + 1) * filters), slice(None), *weight)
                in_y = (slice(None), slice(g * filters, (g + 1) * filters), *position)
                if result == "y":
                    y[in_y] += x[in_x] @ w[in_w].T
                elif result == "x":
                    x[in_x] += y[in_y] @ w[in_w]
                else:
                    w[in_w] += y[in_y].T @ x[in_x]
