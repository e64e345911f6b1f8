"""Rows of the selftest: how inputs are drawn, and how far a result may differ from the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct

from ..dtypes import as_dtype
from ..shapes.checks import FLOATS
from ..shapes.specs import LAYOUTS
from ..typing import Layout

# The largest error, divided by the largest element or 1: for a result that is rounded once; for sums of
# products, with factors of 11 bits in TF32; for the same without TF32; and for sums over a batch.
ROUNDED = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
PRODUCTS = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}
STRICT = {"float32": 2e-4}
EXACT = {"int8": 0.0}
SUMS = {"float16": 4e-3, "bfloat16": 3.2e-2, "float32": 1e-4, "float64": 1e-10}


class Inputs(NamedTuple):
    """The arguments of one call: for operation and reference, and for the operation only."""

    operands: tuple[Any, ...]
    keywords: dict[str, Any]
    device_keywords: dict[str, Any] = {}  # noqa: RUF012 - never modified


class Case(NamedTuple):
    """One call to test; ``make`` draws its inputs, ``tolerance`` is relative to the largest element."""

    operation: str
    variant: str
    dtype: str
    layout: Layout
    tolerance: float
    make: Callable[[Draw], Inputs]

    @property
    def name(self) -> str:
        """Its name in a report."""
        return f"{self.operation}{f' ({self.variant})' if self.variant else ''}"

    def inputs(self) -> Inputs:
        """Draw the inputs, which are the same each time."""
        return self.make(Draw(self.dtype))


class Draw:
    """Draw arrays of one dtype."""

    def __init__(self, dtype: str) -> None:
        self.rng = np.random.default_rng(0)
        self.dtype = as_dtype(dtype).numpy
        # The parameters of a normalisation in half precision are float32.
        self.wide = np.dtype(np.float64 if dtype == "float64" else np.float32)

    def floats(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw normal numbers; for integers, any."""
        if self.dtype.kind == "i":
            return self.rng.integers(-128, 128, shape).astype(self.dtype)
        return self.rng.standard_normal(shape).astype(self.dtype)

    def nonzero(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw small integers that are not 0."""
        return self.rng.choice((-3, -2, -1, 1, 2, 3), shape).astype(self.dtype)

    def distinct(self, *shape: int) -> np.ndarray[Any, Any]:
        """Return numbers that differ within a small window, so that its maximum is one element."""
        return (np.arange(np.prod(shape)).reshape(shape) * 37 % 101 - 50).astype(self.dtype)

    def parameter(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw positive numbers for scales and variances."""
        return self.rng.uniform(0.5, 2, shape).astype(self.wide)


def of_shapes(
    keywords: dict[str, Any], operands: dict[str, Any], device: dict[str, Any] | None = None, **optional: Any
) -> Callable[[Draw], Inputs]:
    """Return a function that draws arrays of these shapes: operands in their order, others as keywords."""

    def one(draw: Draw, name: str, shape: Any) -> Any:
        if name.endswith("_shape"):  # an argument that is a shape
            return shape
        return draw.parameter(*shape) if name == "scale" else draw.floats(*shape)

    def make(draw: Draw) -> Inputs:
        given = tuple(one(draw, name, shape) for name, shape in operands.items())
        arrays = {name: one(draw, name, shape) for name, shape in optional.items()}
        return Inputs(given, keywords | arrays, device or {})

    return make


@cache
def required(operation: str) -> tuple[str, ...]:
    """Return the names of the parameters of an operation that have no default."""
    parameters = signature(getattr(ct, operation)).parameters.values()
    return tuple(row.name for row in parameters if row.default is Parameter.empty)


def each_layout(
    operation: str,
    variant: str,
    make: Callable[..., Inputs],
    tolerance: dict[str, float],
    dtypes: tuple[str, ...] = FLOATS,
    layouts: tuple[Layout, ...] = LAYOUTS,
) -> Iterator[Case]:
    """Yield a row for each dtype and layout."""
    required(operation)  # before a test replaces the operation
    for dtype in dtypes:
        for layout in layouts:
            yield Case(operation, variant, dtype, layout, tolerance[dtype], make)
