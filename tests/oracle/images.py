"""Instance normalisation as batch normalisation of one image, for arrays of NumPy and tensors of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["of_each_image", "of_one_image"]


def of_one_image(operands: dict[str, Any], join: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Return operands, or values, of images (N, C, ...) as those of one image with N * C channels.

    ``join`` is ``numpy.concatenate`` or ``torch.cat``.
    """
    shape = next(tuple(operands[name].shape) for name in ("x", "y", "dx") if operands.get(name) is not None)
    images, channels, *size = shape
    found = {}
    for name, array in operands.items():
        if array is None:
            continue
        if name in ("x", "y", "dy", "dx"):
            found[name] = array.reshape((1, images * channels, *size))
        elif name in ("mean", "invstd"):
            found[name] = array.reshape((1, images * channels, *(1 for _ in size)))
        else:  # a value for each channel
            found[name] = join([array.reshape(-1)] * images) if images else array.reshape(-1)[:0]
    return found


def of_each_image(
    values: dict[str, Any], shape: tuple[int, ...], combine: Callable[[Any], Any]
) -> dict[str, Any]:
    """Undo :func:`of_one_image`; ``combine`` takes (N, C) values of the images to (C,)."""
    images, channels, *size = shape
    found = {}
    for name, array in values.items():
        if name in ("y", "dx"):
            found[name] = array.reshape(shape)
        elif name in ("mean", "invstd"):
            found[name] = array.reshape((images, channels, *(1 for _ in size)))
        else:
            found[name] = combine(array.reshape((images, channels)))
    return found
