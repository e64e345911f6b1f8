"""The key of an array: its spec, its device, and whether it is aligned and may be written; keys of views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType, NoneType
from typing import Any

from ..dtypes import DTYPES
from ..shapes.specs import UNALIGNED, TensorSpec


@dataclass(slots=True, eq=False)
class ArrayKey:
    """All of an array that a prepared call depends on. Equal ones are one object, which is cheap to hash."""

    spec: TensorSpec
    device: int
    aligned: bool
    readonly: bool


array_key = lru_cache(4096)(ArrayKey)  # calls whose keys are dropped are prepared once more

MakeView = Callable[[TensorSpec, Any], TensorSpec | tuple[TensorSpec, int] | None]
"""Return the spec of a view that is requested, and its offset in elements; None if it needs a copy."""


def view_key(make: MakeView | None, key: ArrayKey, pointer: int, request: Any) -> tuple[ArrayKey, int] | None:
    """Return the key of a view of an array at an address, and its offset in bytes."""
    if (made := make(key.spec, request) if make else request) is None:
        return None
    spec, offset = (made, 0) if isinstance(made, TensorSpec) else made
    offset *= DTYPES[key.spec.dtype].itemsize
    return array_key(spec, key.device, not (pointer + offset) & UNALIGNED, key.readonly), offset


@lru_cache(4096, typed=True)
def known_view_key(
    make: MakeView | None, key: ArrayKey, rest: int, *request: Any
) -> tuple[ArrayKey, int] | None:
    """Return :func:`view_key`, of a pointer modulo 16; raise TypeError for an object that may change."""
    if {*map(type, request)} <= {int, NoneType, EllipsisType, object, TensorSpec}:
        return view_key(make, key, rest, request)
    raise TypeError("an index may change")
