"""Record the graphs that a program plans, so that they can be compiled elsewhere."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from .._cache_files import as_path, replace_file
from ..errors import NotSupportedError, caller
from ..plans.base import missing_last
from ..shapes.specs import TensorSpec
from .attributes import graph_from_json, graph_text, graph_to_json
from .offline import ShapesOnly
from .operations import Graph
from .plan_store import StoredPlan
from .rules import EngineRules, rules_from_json, rules_to_json

FORMAT = "cudnn_ct graphs 1"


class PlanRequest(NamedTuple):
    """A graph to compile, and how its engine is selected."""

    graph: Graph
    order: tuple[int, ...] | None = None  # of `graph.candidates.first_plan`; None with candidates
    rules: EngineRules = EngineRules()
    engine: str = ""  # used where the call was recorded
    choice: str = ""  # of a call that took the heuristic choice: the problem and the limits
    limits: Mapping[str, Any] = MappingProxyType({})  # the limits as JSON
    replaceable: bool = False  # whether the heuristics select another engine if this one is not usable
    call: str = ""  # the operation, and the line of the program that made it
    # Other ways to compute the call if the graph has no engine: the first whose graphs all have engines. One
    # without graphs, such as a function of the legacy calls, needs none.
    instead: tuple[tuple[PlanRequest, ...], ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """Two requests with the same identity are one."""
        engine = "" if self.choice else self.engine
        rejected = ",".join(one.fact for one in self.rules.rejections)
        selected = repr(sorted(self.rules.excluded)), engine, str(self.replaceable), self.choice, rejected
        instead = [repr([[one.identity for one in way] for way in self.instead])] if self.instead else []
        return graph_text(self.graph), repr(self.order), *selected, *instead

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON for :func:`read_requests`."""
        row = self._asdict() | {"graph": graph_to_json(self.graph), "limits": dict(self.limits)}
        row["instead"] = [[one.as_json() for one in way] for way in self.instead]
        return rules_to_json(row.pop("rules")) | row


class RecordedPlans:
    """The graphs that calls have planned, and their compiled plans; see :func:`record_plans`.

    Attributes
    ----------
    requests : dict
        The graphs, each with how its engine is selected. ``len()`` is their number.
    plans : dict
        The compiled plans, empty if the calls ran on shapes; for :func:`export_plans`.
    skipped : dict
        Calls on shapes that have no graph, with the reason.
    on_shapes : bool
        Whether the calls ran on shapes, so that nothing was compiled.

    Examples
    --------
    As of :func:`export_plans`.
    """

    def __init__(self, *, on_shapes: bool = False) -> None:
        self.on_shapes = on_shapes
        self.requests: dict[tuple[str, ...], PlanRequest] = {}
        self.plans: dict[str, StoredPlan] = {}
        self.skipped: dict[str, str] = {}  # calls without a plan, with the reason

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.requests)} graphs, {len(self.plans)} entries compiled>"

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the graphs as JSON for ``cudnn-ct compile``, and return their number.

        Raises OSError if the file cannot be written.
        """
        rows = [request.as_json() for request in self.requests.values()]
        content = {"format": FORMAT, "graphs": rows, "skipped": self.skipped}
        replace_file(as_path(path), json.dumps(content).encode() + b"\n")
        return len(rows)


class _Thread(threading.local):
    """The request that this thread recorded last, and the only recording that takes its requests."""

    last: PlanRequest | None = None
    only: RecordedPlans | None = None


_recordings: list[RecordedPlans] = []  # those that are active, in all threads
_thread = _Thread()


def active() -> bool:
    """Return whether plans are recorded."""
    return bool(_recordings)


def _targets() -> list[RecordedPlans]:
    return list(_recordings) if _thread.only is None else [_thread.only]


def record(request: PlanRequest, *plans: StoredPlan) -> None:
    """Record a graph that was planned, and its plan."""
    targets = _targets()
    if targets and not request.call:
        request = request._replace(call=str(caller()))
    for recording in targets:
        known = recording.requests.get(request.identity)
        if known is not None:  # the line that needs it first is named
            request = request._replace(call=known.call)
        recording.requests[request.identity] = request
        recording.plans.update((plan.key, plan) for plan in plans)
    _thread.last = request if targets else None


def begin_choice() -> None:
    """Forget the graph that this thread recorded last: a choice belongs to a graph that is recorded later."""
    _thread.last = None


def note_choice(choice: str, limits: Mapping[str, Any], *plans: StoredPlan) -> None:
    """Note that the graph which this thread recorded last was the heuristic choice for a problem."""
    request, _thread.last = _thread.last, None
    if request is None:
        return
    for recording in _targets():
        recording.requests.pop(request.identity, None)
    record(request._replace(choice=choice, limits=limits), *plans)
    _thread.last = None


def note_entry(entry: StoredPlan) -> None:
    """Add an entry of the store that is not a plan, such as a certificate, to the active recordings."""
    for recording in list(_recordings):
        recording.plans[entry.key] = entry


def unplanned(problem: Any, reason: str) -> None:
    """Record a call that has no graph, with the names of public arguments."""
    text = in_public_names(problem)
    call = ": ".join(filter(None, (str(caller()), text)))  # a file of calls has no lines
    for recording in list(_recordings):
        recording.skipped[call] = reason.replace(str(problem), text)


def rejected(skipped: Mapping[str, str]) -> dict[str, str]:
    """Return the calls among those without a graph that cuDNN supports on no GPU."""
    errors = ("NotSupportedError:", "BadParamError:", "VersionMismatchError:")
    return {call: reason for call, reason in skipped.items() if reason.startswith(errors)}


@contextmanager
def alone() -> Iterator[RecordedPlans]:
    """Record the graphs that this thread plans in a block into an object that no other recording sees."""
    before, _thread.only = _thread.only, RecordedPlans()
    try:
        yield _thread.only
    finally:
        _thread.only, _thread.last = before, None


def record_first(ways: Iterable[Callable[[], Any]]) -> Any:
    """Record the graphs of the first supported way to compute a call, and those of the other ways with them.

    Return the result of the first way. Which way a GPU supports is known when its engines are queried. Ways
    after one without graphs are not tried. Raise NotSupportedError with all reasons if none is supported.
    """
    found: list[tuple[Any, tuple[PlanRequest, ...]]] = []
    reasons: list[str] = []
    for way in ways:
        try:
            with alone() as recorded:
                result = way()
        except (NotSupportedError, ValueError) as error:  # a ValueError: no descriptor holds such numbers
            reasons.append(str(error))
            continue
        except AttributeError as needed:  # of a context, as legacy calls need
            if not (found and isinstance(needed.obj, ShapesOnly)):
                for request in recorded.requests.values():
                    record(request)
                raise
            result = found[0][0]
        if result is not None:
            found.append((result, tuple(recorded.requests.values())))
            if not recorded:
                break
    if not found:
        raise NotSupportedError("; ".join(missing_last(reasons)) or "nothing computes it")
    (result, first), *others = found
    instead = {tuple(one.identity for one in way): way for _, way in others if way != first}
    for request in first:
        record(request._replace(instead=(*request.instead, *instead.values())))
    return result


@contextmanager
def into(recording: RecordedPlans) -> Iterator[None]:
    """Record into an object in a block, in all threads."""
    _recordings.append(recording)
    try:
        yield
    finally:
        _recordings.remove(recording)


def read_requests(content: object) -> list[PlanRequest]:
    """Return the graphs that :meth:`RecordedPlans.save` wrote; raise ValueError for other JSON."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'not a JSON object with "format": "{FORMAT}" and "graphs"')
    try:
        return _requests_of(content["graphs"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a graph is malformed: {type(error).__name__} {error}") from None


def _requests_of(rows: Any) -> list[PlanRequest]:
    return [
        PlanRequest(
            graph_from_json(row["graph"]),
            None if row.get("order") is None else tuple(map(int, row["order"])),
            rules_from_json(row),
            str(row.get("engine", "")),
            str(row.get("choice", "")),
            dict(row.get("limits", {})),
            bool(row.get("replaceable", False)),
            str(row.get("call", "")),
            tuple(tuple(_requests_of(way)) for way in row.get("instead", ())),
        )
        for row in rows
    ]


# --- calls in public names ---------------------------------------------------------------------------------

# Arguments for fields of problems and of their parameters; empty for fields that no argument sets.
_ARGUMENTS = {
    **dict.fromkeys(("aligned", "compute", "longest", "scaled", "tensor_cores", "unproven"), ""),
    **{f"starts_{name}": f"offsets of {name}" for name in ("q", "k", "v", "y", "stats")},
    "LRNSpec.alpha": "lrn_alpha",
    "LRNSpec.beta": "lrn_beta",
    "axes": "axis",
    "c": "out",
    "corner": "window from",
    "elements": "count",
    "left": "window left",
    "next_mean": "new running_mean",
    "next_var": "new running_var",
    "page_table_v": "page_table of v",
    "right": "window right",
    "saved_stats": "stats",
    "saved_y": "y",
    "z": "residual",
}


def in_public_names(problem: Any) -> str:
    """Return the text of a problem with the names of public arguments."""
    text = str(problem)
    for field, value in getattr(problem, "_asdict", dict)().items():
        shown = "".join(f", {argument}" for argument in _arguments(field, value))
        text = text.replace(f", {field} {value}", shown, 1)
    return text


def _arguments(field: str, value: Any, owner: str = "") -> list[str]:
    """Return the arguments that a field has, with their values: each of those in a tuple of parameters."""
    if hasattr(value, "_asdict") and not isinstance(value, TensorSpec):
        kind = type(value).__name__
        return [text for inner, one in value._asdict().items() for text in _arguments(inner, one, kind)]
    name = _ARGUMENTS.get(f"{owner}.{field}", _ARGUMENTS.get(field, field))
    shown = tuple(value) if isinstance(value, range) else value
    return [f"{name} {shown}"] if name and value not in (None, "") else []
