"""Calls on arrays without memory: their graphs are recorded, and their results have only shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from .._caller import caller
from ..array import DeviceArray
from ..array_shapes import ShapeArray, records, spec_of
from ..errors import NotSupportedError
from ..graph.offline import ShapesOnly
from ..graph.recording import RecordedPlans, begin, end, unplanned
from ..shapes.specs import TensorSpec
from ._fallback import usable
from ._operands import check_writable
from ._operation import CallSignature, Operation
from ._pieces import pieces_of

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
        _record(op, problem, params, any(scaled))
    results: list[DeviceArray] = [ShapeArray.of(spec) for spec in problem.results]
    for place, (out, spec) in enumerate(zip(outs[: len(results)], given, strict=False)):
        if spec is not None:
            results[place] = out if isinstance(out, DeviceArray) else ShapeArray.of(spec)
    return results


def _record(op: Operation, problem: Any, params: tuple[Any, ...], scaled: bool) -> None:
    """Plan a problem without a GPU, so that its graphs are recorded."""
    where: Any = ShapesOnly()
    parts = list(dict.fromkeys(part for part, _ in pieces_of(problem, op.independent)))
    selects = [op.select(part, params) for part in parts] if op.select else []  # rejects arguments, too
    recorded, reason = RecordedPlans(), ""
    begin(recorded)
    try:
        for select in selects:
            select(where)
        planned = [op.select or _plan(op, part, where, scaled) for part in parts]
        if not all(planned):
            reason = "no implementation supports it without copies"
    except Exception as error:  # an implementation without a graph may need anything that a context has
        needs_gpu = isinstance(error, AttributeError) and isinstance(error.obj, ShapesOnly)
        reason = "its plan needs a GPU" if needs_gpu else f"{type(error).__name__}: {error}"
    finally:
        end(recorded)
    if reason or not recorded:
        call = ": ".join(filter(None, (str(caller()), str(problem))))  # a file of calls has no lines
        unplanned(call, reason or "cuDNN computes it by a function that needs no plan")


def _plan(op: Operation, problem: Any, where: Any, scaled: bool) -> bool:
    """Plan the first implementation that supports a problem in its layout; return whether one does.

    Raise the error of the first one that rejects the problem, if none supports it.
    """
    if op.compose:
        op.compose(problem, True, where)
        return True
    rejected: NotSupportedError | None = None
    for one in usable(op.implementations, scaled=scaled):
        try:
            if one.make(problem, where) is not None:
                return True
        except NotSupportedError as error:
            rejected = rejected or error
    if rejected is not None:
        raise rejected
    return False
