"""The key of an array: its spec, its device, and whether it is aligned and may be written; keys of views."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
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


_IMMUTABLE = {int, object, TensorSpec, type(None), type(...)}  # what requests of views are made of
array_key = lru_cache(4096)(ArrayKey)  # calls whose keys are dropped are prepared once more


def view_key(make: Any, key: ArrayKey, pointer: int, request: Any) -> tuple[ArrayKey, int] | None:
    """Return the key of the view that ``make`` describes, or the request, and its offset in bytes."""
    if (made := make(key.spec, request) if make else request) is None:
        return None
    spec, offset = (made, 0) if isinstance(made, TensorSpec) else made
    offset *= DTYPES[key.spec.dtype].itemsize
    return array_key(spec, key.device, not (pointer + offset) & UNALIGNED, key.readonly), offset


@lru_cache(4096, typed=True)
def known_view_key(make: Any, key: ArrayKey, rest: int, *request: Any) -> tuple[ArrayKey, int] | None:
    """Return :func:`view_key`, of a pointer modulo 16; raise TypeError for an object that may change."""
    if {*map(type, request)} <= _IMMUTABLE:
        return view_key(make, key, rest, request)
    raise TypeError("an index may change")
