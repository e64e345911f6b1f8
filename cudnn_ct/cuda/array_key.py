"""The key of an array: its spec, its device, and whether it is aligned and may be written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..shapes.specs import TensorSpec


@dataclass(slots=True, eq=False)
class ArrayKey:
    """All of an array that a prepared call depends on. Equal ones are one object, which is cheap to hash."""

    spec: TensorSpec
    device: int
    aligned: bool
    readonly: bool


array_key = lru_cache(4096)(ArrayKey)  # calls whose keys are dropped are prepared once more
