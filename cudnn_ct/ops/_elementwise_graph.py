"""Conversions and elementwise operations by graphs of one node, without legacy calls."""

from __future__ import annotations

from .._config import config
from .._lib import load
from ..context import Context
from ..dtypes import DTYPES
from ..graph.operations import Graph, Tensor, node
from ..graph.pixels import in_pixels
from ..plans.base import Plan
from ..plans.elementwise import copy_plan
from ..plans.program import Program, Step, chained
from ..shapes.specs import INT_MAX, TensorSpec, equivalent_strides
from ._first_plan import first_plan
from ._formulas import DTYPES_OF_ENGINES

# --- conversions of tensors by graphs of one node, for dtypes that ``cudnnOpTensor`` does not convert ------


def cast_by_graph(x: TensorSpec, y: TensorSpec, context: Context, mode: str = "identity") -> Program:
    """Return a plan that converts contiguous copies: graphs do not scale, and need one memory order.

    ``mode`` is the elementwise operation on the way.
    Alpha is applied in the wider of the two dtypes, so that values that it brings into range are kept.
    """
    packed_x, packed_y = (TensorSpec.packed(x.shape, spec.dtype) for spec in (x, y))
    # No engine supports a single element: it is converted together with the unused one behind it.
    copies = [
        spec if spec.size != 1 else TensorSpec.packed((2,), spec.dtype) for spec in (packed_x, packed_y)
    ]
    convert = in_pixels(lambda a, b: first_plan(conversion_graph(a, b, mode), context), *copies)
    steps = [
        Step(copy_plan(x, packed_x), (0, 2)),
        Step(convert, (2, 3)),
        Step(copy_plan(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return chained(copies, steps, scaled=0 if narrower else 2)


def conversion_graph(x: TensorSpec, y: TensorSpec, mode: str = "identity") -> Graph:
    """Make the graph of an operation that converts x to the dtype of y; both are images of pixels."""
    return elementwise_graph(mode, x, y, compute="float64" if "float64" in (x.dtype, y.dtype) else "float32")


# --- elementwise graphs on contiguous operands, for a cuDNN that has no legacy calls -----------------------


# The attributes of a node that hold its operands, the result last, by their number.
NAMES = {2: ("xdesc", "ydesc"), 3: ("xdesc", "bdesc", "ydesc")}


def has_legacy_calls() -> bool:
    """Return whether this cuDNN computes elementwise operations without a graph; JIT wheels do not."""
    return not load().lacks("ops")


def in_one_order(*specs: TensorSpec) -> bool:
    """Return whether tensors have one shape, are contiguous, and have their elements in the same order."""
    first = specs[0]
    return bool(first.layouts) and all(
        one.shape == first.shape and equivalent_strides(first.shape, one.strides, first.strides)
        for one in specs
    )


def elementwise_plan(mode: str, specs: tuple[TensorSpec, ...], context: Context) -> Plan | None:
    """Return a plan of a pointwise node of one or two operands and the result.

    None for operands that are not ``in_one_order``, for other dtypes, and for a single element, which no
    engine supports. The engine is compiled when the plan is made.
    """
    if not in_one_order(*specs) or not config.allow_runtime_compilation:
        return None
    if not 2 <= specs[0].size <= INT_MAX or not {spec.dtype for spec in specs} <= set(DTYPES_OF_ENGINES):
        return None
    return in_pixels(lambda *pixels: first_plan(elementwise_graph(mode, *pixels), context), *specs)


def elementwise_graph(mode: str, *specs: TensorSpec, compute: str = "float32") -> Graph:
    """Return the graph of a pointwise node of one or two operands and the result."""
    tensors = tuple(Tensor(uid, spec) for uid, spec in enumerate(specs, 1))
    operands = dict(zip(NAMES[len(specs)], tensors, strict=True))
    return Graph((node("pointwise", mode=mode, math_prec=compute, **operands),), tensors)
