"""What operations ask of the tensors they are given: one dtype, shapes that agree, an image or a volume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..dtypes import as_dtype
from .specs import Shape, check_shape

FLOATS = ("float16", "bfloat16", "float32", "float64")


def one_dtype(operation: str, allowed: tuple[str, ...] = FLOATS, /, **dtypes: Any) -> str:
    """Return the name of the dtype that all tensors named have, which is one of ``allowed``.

    >>> one_dtype("pooling", x="float32", dy="float32")
    'float32'
    """
    names = {tensor: as_dtype(dtype).name for tensor, dtype in dtypes.items()}
    (first, one), *others = names.items()
    for tensor, name in others:
        if name != one:
            raise TypeError(f"{first} is {one} and {tensor} is {name}; {operation} needs one dtype for all")
    if one not in allowed:
        raise TypeError(f"{operation} takes {', '.join(allowed)}, not {one}")
    return one


def same_shape(**shapes: Shape) -> Shape:
    """Return the shape that all tensors named have.

    >>> same_shape(x=(2, 3), dy=(2, 3))
    (2, 3)
    """
    (first, one), *others = shapes.items()
    for tensor, shape in others:
        if tuple(shape) != tuple(one):
            raise ValueError(f"{tensor} has shape {tuple(shape)}; {first} has {tuple(one)}")
    return tuple(one)


def check_images(shape: Iterable[int], name: str = "x") -> Shape:
    """Return a shape (N, C, *spatial) with 1 to 3 spatial axes as a tuple of ints."""
    dims = check_shape(shape, f"{name}_shape")
    if not 3 <= len(dims) <= 5:
        raise ValueError(f"{name} has shape {dims}; expected (N, C, *spatial) with 1 to 3 spatial axes")
    return dims
