"""Calls on arrays without memory: their graphs are recorded, and their results have only shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..array import DeviceArray
from ..array_shapes import ShapeArray, spec_of
from ..graph.offline import ShapesOnly
from ..graph.recording import unplanned
from ..shapes.specs import TensorSpec
from ._operands import check_writable, representable
from ._operation import CallSignature, Operation

__all__ = ["call_on_shapes"]


def call_on_shapes(
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[Any, ...],
    params: tuple[Any, ...],
    scaled: tuple[bool, bool],
    outs: tuple[Any, ...],
) -> Sequence[DeviceArray]:
    """Record the graphs of a call, and return arrays without memory for its results."""
    specs = tuple(spec_of(array, name) for array, name in zip(operands, names, strict=True))
    given: tuple[TensorSpec | None, ...] = tuple(None if out is None else spec_of(out) for out in outs)
    for name, out in zip(op.written, given, strict=False):
        check_writable(out, name)
    params = op.freeze(params)
    signature = CallSignature(names, specs, given, params, scaled)
    problem = op.problem_of(signature, tuple(map(representable, specs)))
    where: Any = ShapesOnly()
    try:
        if op.select:
            op.select(problem, params)(where)
        else:
            _plan(op, problem, where, any(scaled))
    except Exception as error:  # an implementation without a graph may need anything that a context has
        unplanned(str(problem), f"{type(error).__name__}: {error}")
    results = [ShapeArray.of(spec) for spec in problem.results]
    for place, out in enumerate(outs):
        with suppress(IndexError):
            results[place] = results[place] if out is None else out
    return results


def _plan(op: Operation, problem: Any, where: Any, scaled: bool) -> None:
    """Make a plan of the first implementation that supports a problem in its present layout."""
    for one in op.implementations:
        if (one.scales or not scaled) and one.make(problem, where) is not None:
            return
    unplanned(str(problem), "no implementation supports it without copies")
