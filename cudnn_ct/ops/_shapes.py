"""Calls on arrays without memory: their graphs are recorded, and their results have only shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from ..array import DeviceArray
from ..array_shapes import ShapeArray, records, spec_of
from ..errors import CudnnError, caller
from ..graph.offline import ShapesOnly
from ..graph.recording import alone, record, unplanned
from ..shapes.specs import TensorSpec
from ._operands import check_writable
from ._operation import CallSignature, Operation

composing: ContextVar[Any] = ContextVar("composing", default=None)  # `Parts` of the definition that is called


def call_on_shapes(
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[Any, ...],
    params: tuple[Any, ...],
    scaled: tuple[bool, bool],
    outs: tuple[Any, ...],
    factors: tuple[Any, Any],
) -> Sequence[DeviceArray]:
    """Record the graphs of a call if they are recorded, and return arrays without memory for its results.

    ``factors`` are alpha and beta. A call of the definition of an operation becomes a part of it.
    """
    if (parts := composing.get()) is not None:
        found: Sequence[DeviceArray] = parts.call(op, names, operands, params, scaled, outs, factors)
        return found
    specs = tuple(spec_of(array, name) for array, name in zip(operands, names, strict=True))
    given: tuple[TensorSpec | None, ...] = tuple(
        None if out is None else spec_of(out, name) for name, out in zip(op.written, outs, strict=False)
    )
    for name, spec in zip(op.written, given, strict=False):
        check_writable(spec, name)
    params = op.freeze(params)
    signature = CallSignature(names, specs, given, params, scaled)
    problem = op.problem_of(signature, op.inputs_of(names, specs))
    if records():
        _record(op, problem, params, scaled)
    results: list[DeviceArray] = [ShapeArray.of(spec) for spec in problem.results]
    for place, (out, spec) in enumerate(zip(outs[: len(results)], given, strict=False)):
        if spec is not None:
            results[place] = out if isinstance(out, DeviceArray) else ShapeArray.of(spec)
    return results


def _record(op: Operation, problem: Any, params: tuple[Any, ...], scaled: tuple[bool, bool]) -> None:
    """Plan a problem as its first run does, but without a GPU, so that its graphs are recorded."""
    signature, where, reason = CallSignature((), (), params=params, scaled=scaled), ShapesOnly(), ""
    select = op.selection(problem, signature)  # rejects arguments
    with alone() as recorded:
        try:
            select(where)  # type: ignore[arg-type]
        except CudnnError as error:
            reason = f"{type(error).__name__}: {error}"
            recorded.requests.clear()
        except AttributeError as error:  # an implementation without a graph may need what a context has
            if not isinstance(error.obj, ShapesOnly):
                raise
            reason = "its plan needs a GPU"
    for request in recorded.requests.values():
        record(request)
    if reason or not recorded:
        call = ": ".join(filter(None, (str(caller()), str(problem))))  # a file of calls has no lines
        unplanned(call, reason or "cuDNN computes it by a function that needs no plan")
