"""Elementwise graphs of one node on contiguous operands, for a cuDNN that has no legacy calls."""

from __future__ import annotations

from .._config import config
from .._lib import load
from ..context import Context
from ..graph.first import first_plan
from ..graph.operations import Graph, Tensor, node
from ..graph.pixels import in_pixels
from ..plans.base import Plan
from ..shapes.specs import INT_MAX, TensorSpec, equivalent_strides

DTYPES = ("float16", "bfloat16", "float32")  # no engine computes float64


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
    if not 2 <= specs[0].size <= INT_MAX or not {spec.dtype for spec in specs} <= set(DTYPES):
        return None
    return in_pixels(lambda *pixels: first_plan(_graph(mode, pixels), context), *specs)


def _graph(mode: str, specs: tuple[TensorSpec, ...]) -> Graph:
    tensors = tuple(Tensor(uid, spec) for uid, spec in enumerate(specs, 1))
    operands = dict(zip(NAMES[len(specs)], tensors, strict=True))
    return Graph((node("pointwise", mode=mode, math_prec="float32", **operands),), tensors)
