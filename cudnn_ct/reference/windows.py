"""Windows that move over the spatial axes of images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..shapes.conv import Pairs
from ..shapes.specs import Shape
from ._cast import Float64

Index = tuple[Any, ...]


class Windows(NamedTuple):
    """The positions of a window over images of shape (N, C, *spatial), for each spatial axis."""

    spatial: Shape
    window: Shape
    padding: Pairs
    stride: Shape
    dilation: Shape
    counts: Shape  # how many positions the window has

    def taps(self) -> Iterator[tuple[Index, Index]]:
        """For each element of the window, in C order: its index, and that of the pixels under it.

        The second index is for a padded image, and selects one pixel for each position of the window.
        """
        for element in product(*map(range, self.window)):
            axes = zip(element, self.dilation, self.stride, self.counts, strict=True)
            pixels = (slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in axes)
            yield (..., *element), (..., *pixels)

    def pad(self, x: Float64, value: float = 0) -> Float64:
        """Return images with their padding, filled with ``value``."""
        return np.pad(x, [*[(0, 0)] * (x.ndim - len(self.padding)), *self.padding], constant_values=value)

    def padded_zeros(self, *channels: int) -> Float64:
        """Return padded images of zeros; ``channels`` are the axes before the spatial ones."""
        sizes = zip(self.spatial, self.padding, strict=True)
        return np.zeros((*channels, *(n + sum(pair) for n, pair in sizes)))

    def crop(self, x: Float64) -> Float64:
        """Return padded images without their padding."""
        sizes = zip(self.padding, self.spatial, strict=True)
        inside: Index = (..., *(slice(before, before + n) for (before, _), n in sizes))
        return np.asarray(x[inside])
