"""Checks of operands: one dtype, matching shapes, images or volumes, axes in range."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ..dtypes import as_dtype
from .parse import as_list
from .shape_hints import batch_hint, cast_hint
from .specs import Shape, TensorSpec, check_shape, nearest_layout

Specs = dict[str, TensorSpec]  # of operands, by the names of parameters
Outs = tuple[TensorSpec | None, ...]  # of results; None for a new one

FLOATS = ("float16", "bfloat16", "float32", "float64")


def one_dtype(operation: str, allowed: tuple[str, ...] = FLOATS, /, **dtypes: Any) -> str:
    """Return the name of the dtype that all named tensors share; it must be one of ``allowed``."""
    names = {tensor: as_dtype(dtype).name for tensor, dtype in dtypes.items()}
    (first, one), *others = names.items()
    for tensor, name in others:
        if name != one:
            hint = cast_hint(**{first: one, tensor: name})
            raise TypeError(
                f"{first} is {one} and {tensor} is {name}; {operation} needs one dtype for all{hint}"
            )
    if one not in allowed:
        raise TypeError(f"{operation} takes {', '.join(allowed)}, not {one}")
    return one


def same_shape(**shapes: Shape) -> Shape:
    """Return the shape that all tensors named have."""
    (first, one), *others = shapes.items()
    for tensor, shape in others:
        if tuple(shape) != tuple(one):
            raise ValueError(f"{tensor} has shape {tuple(shape)}; {first} has {tuple(one)}")
    return tuple(one)


def expect_rank(spec: TensorSpec, name: str, *ranks: int) -> None:
    """Raise unless a tensor has one of these numbers of axes."""
    if len(spec.shape) not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ValueError(f"{name} has the wrong rank: got shape {spec.shape}, expected {wanted} axes")


def expect_shape(spec: TensorSpec, name: str, shape: Shape) -> None:
    """Raise unless a tensor has this shape."""
    if spec.shape != shape:
        raise ValueError(f"{name} has the wrong shape: got {spec.shape}, expected {shape}")


def expect_dtype(spec: TensorSpec, name: str, *dtypes: str) -> None:
    """Raise unless a tensor has one of these dtypes."""
    if spec.dtype not in dtypes:
        raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected {' or '.join(dtypes)}")


def check_images(shape: Iterable[int], name: str = "x") -> Shape:
    """Return a shape (N, C, *spatial) with 1 to 3 spatial axes as a tuple of ints."""
    dims = check_shape(shape, f"{name}_shape")
    if not 3 <= len(dims) <= 5:
        expected = f"expected (N, C, *spatial) with 1 to 3 spatial axes{batch_hint(name, dims, 3)}"
        raise ValueError(f"{name} has shape {dims}; {expected}")
    return dims


def result_spec(
    shape: Shape, *operands: TensorSpec, out: TensorSpec | None = None, name: str = "out", dtype: str = ""
) -> TensorSpec:
    """Return ``out`` if it is given and fits, else a packed spec in the `nearest_layout` of the operands."""
    dtype = dtype or operands[0].dtype
    if out is None:
        return TensorSpec.packed(shape, dtype, nearest_layout(*operands) if 3 <= len(shape) <= 5 else "nchw")
    if out.dtype != dtype:
        raise TypeError(f"{name} is {out.dtype}; the result is {dtype}")
    if out.shape != shape:
        raise ValueError(f"{name} has shape {out.shape}; the result has {shape}")
    return out


def result_slots(out: Any, names: Sequence[str], *, absent: str = "", count: int = 1) -> tuple[Any, ...]:
    """Return the array given for each result by ``out``: one array for the first, or a tuple for all.

    ``absent`` is the reason why the last ``count`` results do not exist; their places are None, or missing.
    """
    gone = count if absent else 0
    kept = len(names) - gone
    if out is None:
        return (None,) * kept
    outs = tuple(out) if isinstance(out, tuple | list) else (out, *[None] * (len(names) - 1))
    if len(outs) == kept:
        outs = (*outs, *[None] * gone)
    if len(outs) != len(names):
        raise ValueError(f"out has {len(outs)} arrays; the results are {', '.join(names)}")
    for name, given in zip(names[kept:], outs[kept:], strict=True):
        if given is not None:
            raise ValueError(f"out has {name}, but {absent}")
    return outs[:kept]


def some_axes(axes: Any, rank: int, name: str) -> Shape:
    """Return an int or a sequence of ints as a tuple of distinct axes, counted from 0."""
    try:
        axes = as_list(axes)
        given = tuple(map(operator.index, axes if isinstance(axes, Sequence) else (axes,)))
    except TypeError:
        raise TypeError(f"{name} must be an int or a tuple of ints: got {axes!r}") from None
    if given and not rank:
        raise ValueError(f"{name} is out of range: got {axes!r}, but the tensor has no axes")
    for axis in given:
        if not -rank <= axis < rank:
            raise ValueError(f"{name} is out of range: got {axes!r}, expected {-rank} to {rank - 1}")
    found = tuple(axis % rank for axis in given)
    if len(set(found)) < len(found):
        raise ValueError(f"{name} contains an axis twice: got {axes!r}, expected distinct axes")
    return found
