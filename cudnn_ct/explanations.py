"""The plan of the last call, and why cuDNN rejects a call or a graph: the public functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args

from . import array_shapes, context
from .cuda import stream as streams
from .errors import Explanation, NotInitializedError, NotSupportedError, Reason
from .facts import Target
from .graph.changes import supported_changes
from .graph.engines import Engine
from .graph.explain import explain_graph
from .graph.offline import capability_of, target_of
from .graph.operations import Graph
from .legal.rules import engine_rules, why_not_asked
from .ops.conv.candidates import CONVOLUTIONS, with_even_padding
from .ops.graph.attention import attention_of
from .ops.graph.builder import GraphBuilder
from .ops.graph.built import BuiltGraph
from .ops.graph.lower import lowered
from .ops.graph.tensors import GraphTensor
from .plans.base import Candidate
from .shapes.conv import ConvProblem
from .shapes.fused import FusedConv
from .shapes.graph.problem import GraphProblem

Explicable = Graph | GraphProblem | ConvProblem | FusedConv


def explain(
    what: Callable[..., object] | NotSupportedError | GraphBuilder | Explicable,
    /,
    *args: object,
    device: Mapping[str, object] | str | os.PathLike[str] | None = None,
    **kwargs: object,
) -> Explanation:
    """Explain why cuDNN does not support a call or a graph, and which change of it is supported.

    Parameters
    ----------
    what : callable, NotSupportedError, Graph or BuiltGraph
        An operation such as ``ct.conv``, which is called with the other arguments; the error that a call
        raised; a :class:`Graph`, whose outputs are the other arguments; a :class:`BuiltGraph`, or the value
        that :meth:`Graph.define` returns; or a graph from ``cudnn_ct.graph.operations``.
    args, kwargs
        The arguments of a call, or the outputs of a graph.
    device : str, mapping or path, optional
        Explain a graph for a described GPU, in a child process that needs no GPU: a name such as ``"a100"``
        that ``cudnn-ct supports --help`` lists, or a file that ``cudnn-ct device --export`` wrote. By
        default, the graph is explained for the current device.

    Returns
    -------
    Explanation
        ``supported`` has the engines that support the graph. If there is none, ``changes`` has changes of one
        property with which cuDNN has an engine, and ``reasons`` why each engine rejects the graph, in plain
        words and in cuDNN's. ``print`` shows them.

    Raises
    ------
    TypeError
        ``what`` is none of these, or a call has ``device=``.
    ValueError
        An error has no explanation: the operation is not computed by a graph, or engines support it and the
        limits of the request exclude them. The description cannot be read, or cuDNN rejects it. The outputs
        of a graph are missing.
    NotInitializedError
        A call on shapes: nothing is planned.
    CudnnError
        The call fails for another reason, or cuDNN cannot plan for a described device (before 9.8).

    Notes
    -----
    ``cudnnSetCallback``, while each engine is planned again without compiling it. A call that is supported
    runs as usual, and costs nothing more. To find changes, cuDNN's heuristics are queried for changed graphs,
    and an engine is compiled for each change that is returned.

    Examples
    --------
    >>> from cudnn_ct.graph.operations import Graph, Tensor, node
    >>> a, b, c = (
    ...     Tensor(uid, ct.TensorSpec.packed((1, 64, 64), "bfloat16")) for uid in (1, 2, 3)
    ... )
    >>> product = node("matmul", comp_type="float16", adesc=a, bdesc=b, cdesc=c)
    >>> print(ct.explain(Graph((product,), (a, b, c))))  # doctest: +SKIP
    a graph of matmul, cuDNN 9.28.0, is not supported
    one of these changes is enough:
      the compute type must be float32 (is float16)
    ...
    """
    graphs = (GraphBuilder, BuiltGraph, *get_args(Explicable))
    if isinstance(what, graphs) and kwargs:
        raise TypeError(f"unexpected argument for a graph: got {', '.join(kwargs)}=, expected device=")
    if isinstance(what, GraphBuilder):
        what, args = what.define(*_outputs(args)), ()
    if isinstance(what, BuiltGraph) and not (args or kwargs):
        what = what.problem
    if isinstance(what, Explicable) and not (args or kwargs):
        return _of_graph(what, device)
    if device is not None:
        raise TypeError(
            "device= is for graphs: a call runs on its own device; run cudnn-ct algorithms --gpu h200 "
            "--explain or cudnn-ct supports"
        )
    if callable(what):
        call: Any = what
        if array_shapes.active():
            raise NotInitializedError(
                "nothing is planned on shapes, so no call can be explained; pass a graph with device=, or "
                "save the recording and run cudnn-ct supports FILE --gpu NAME"
            )
        try:
            call(*args, **kwargs)
        except NotSupportedError as error:
            what = error
        else:
            return _of_last_call()
    if not isinstance(what, NotSupportedError):
        raise TypeError(f"got {what!r}, expected an operation, a NotSupportedError or a Graph")
    if (found := what.explanation) is None:
        raise ValueError(f"this error has no explanation by engines: {what}") from what
    with _current() as ctx:
        graph = found.graph
        changes = tuple(supported_changes(graph, ctx)) if isinstance(graph, Graph) else ()
    return found._replace(changes=changes)


def _outputs(arguments: tuple[object, ...]) -> Iterator[GraphTensor]:
    for one in arguments:
        if not isinstance(one, GraphTensor):
            raise TypeError(f"output is not a GraphTensor: got {type(one).__name__}")
        yield one


def _of_graph(what: Explicable, device: Any) -> Explanation:
    """Explain a graph, without the engines that facts reject, which are among the reasons."""
    found, target = _by_cudnn(what, device)
    if isinstance(what, Graph):
        return found
    capability, numbers = target.capability or (0, 0), found.supported
    wrong = tuple(
        Reason(rejected, "graph", one.reason, "")
        for one in engine_rules(what, target).rejections
        if not one.without  # the notes of engines are not known here
        and (rejected := tuple(n for n in numbers if one.rejects(Engine(n), (), capability)))
    )
    right = tuple(one for one in found.supported if all(one not in row.engines for row in wrong))
    return found._replace(supported=right, reasons=(*wrong, *found.reasons))


def _by_cudnn(what: Explicable, device: Any) -> tuple[Explanation, Target]:
    graph, problem = (what, "") if isinstance(what, Graph) else (_graph_of(what), str(what))
    names = {}
    if isinstance(what, GraphProblem) and attention_of(what) is None:
        names = {uid: value.name for uid, value in enumerate(what.values, 1)}  # as `lowered` numbers them
    if device is None:
        with _current() as ctx:
            target = target_of(ctx)
            if reason := why_not_asked(what, target):
                return Explanation(problem, reasons=(Reason((), "graph", reason, ""),)), target
            return explain_graph(graph, ctx, problem, names=names), target
    from .cli import offline  # processes and the doctor: only for described devices

    if not isinstance(device, Mapping | str | os.PathLike):
        raise TypeError(f"device is not a name, a path or a description: got {device!r}")
    description = device if isinstance(device, Mapping) else offline.read_gpu(device)
    with offline.naming("device" if isinstance(device, Mapping) else device):
        found = offline.explain(dict(description), graph, problem, names)
    return found, target_of(None)._replace(capability=capability_of(description))


def _graph_of(problem: GraphProblem | ConvProblem | FusedConv) -> Graph:
    if isinstance(problem, GraphProblem):
        return lowered(problem)
    return CONVOLUTIONS.graph_of(with_even_padding(problem))


def _of_last_call() -> Explanation:
    if (plan := last_plan()) is None:  # the object that made the call is gone
        return Explanation("the call", computed_by="cuDNN")
    return Explanation(plan.problem, computed_by=str(plan.candidate or plan.plan))


@contextmanager
def _current() -> Iterator[context.Context]:
    """Enter the current device, and return its context in this thread."""
    where = streams.current_stream()
    with streams.on_device(where.device):
        yield context.current(where)


class PlanDescription(NamedTuple):
    """The plan of a call; see :func:`last_plan`.

    ``problem`` names the operation and its operands. ``candidate`` is the selected algorithm, None for
    operations that select none. ``workspace`` is in bytes. ``fallback_reason`` is why another algorithm ran
    than the one that was named, or empty. ``plan`` has what was selected, how, and what was rejected.
    """

    problem: str
    candidate: Candidate | None
    workspace: int
    fallback_reason: str
    plan: str

    def describe(self) -> str:
        """Return the problem and the plan, one fact a line."""
        return f"{self.problem}\n{self.plan}"


def last_plan() -> PlanDescription | None:
    """Return how this thread's last call on the current device was computed.

    Returns
    -------
    PlanDescription or None
        None before the first call, and if the object that made the call (a ``ConvPlan``, an ``RNN``) is gone.
        Calls that raised an error, and calls on shapes, do not count.

    Raises
    ------
    NotInitializedError
        No driver or no device exists.

    Examples
    --------
    >>> y = ct.conv(ct.full((1, 4, 8, 8), 1), ct.full((4, 4, 3, 3), 1), padding=1)
    >>> plan = ct.last_plan()  # print(plan.describe()) shows how and why
    >>> plan.candidate.backend in ("graph", "legacy")
    True
    """
    if array_shapes.active():
        return None
    where = streams.current_stream()
    with streams.on_device(where.device):
        call = context.current(where).last_call
    if call is None:
        return None
    selected = call.selected
    return PlanDescription(
        str(call.problem),
        selected.candidate,
        selected.plan.workspace,
        selected.fallback_reason,
        call.describe(),
    )
