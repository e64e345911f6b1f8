"""Explain why cuDNN rejects a graph: the property that must change, for each engine, in plain words."""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from cudnn_doctor.read.files import resource

from .._bindings.types import cudnnCallback_t
from .._caches import BoundedDict
from ..context import Context
from ..errors import BadParamError, CudnnError, Explanation, NotSupportedError, Reason
from .changes import COMPUTE, name_of, supported_changes
from .engines import Knobs, engine_config, engine_descriptor, heuristic_configs, heuristic_modes, knob_number
from .native import operation_graph
from .offline import Planner, compute_capability
from .operations import Graph, Tensor
from .plan import BackendDescriptor, attempt

KINDS = ("graph", "gpu", "unknown", "engine", "other")  # what must change, the most useful first
ALL = -1  # the number that stands for the graph itself
MAX_KNOWN = 64  # explanations that are kept for further errors
NOT_OFFERED = "cuDNN's heuristics do not offer this engine; it may fail when it is compiled"


def explain_graph(
    graph: Graph,
    context: Context | Planner,
    problem: str = "",
    *,
    changes: bool = True,
    names: Mapping[int, str] | None = None,
) -> Explanation:
    """Return why cuDNN supports a graph or not, on the device of a context or of a planner.

    The graph is planned once more with each engine, without compiling. If no engine supports it, and
    ``changes`` is set, it is also planned with single properties changed, and compiled with those that help;
    ``names`` has the names of tensors in the changes, by uid. Takes milliseconds, up to a second for a norm,
    and a second for each change.
    """
    where = f" on {context.description.get('deviceName', 'this GPU')}" if isinstance(context, Planner) else ""
    what = problem or f"a graph of {', '.join(one.row for one in graph.nodes)}"
    about = f"{what}{where}, cuDNN {context.library.version_text},"
    rows = lines_of_graph(graph, context)
    supported = tuple(sorted(_offered(graph, context)))
    rows = [row for row in rows if row.number not in supported]
    found = tuple(supported_changes(graph, context, names)) if changes and not supported else ()
    facts = facts_of(graph, compute_capability(context))
    return Explanation(about, supported, found, tuple(_reasons(rows, facts)), graph=graph)


def _offered(graph: Graph, context: Context | Planner) -> set[int]:
    """Return the engines that the heuristics offer; others may fail when they are compiled."""
    try:
        native, modes = operation_graph(graph, context), heuristic_modes(graph, context)
        return {offer.engine.number for offer in heuristic_configs(native, context, modes)}
    except (NotSupportedError, BadParamError):
        return set()


def explanation_of_rejection(graph: Graph, context: Context | Planner, problem: Any) -> Explanation | None:
    """Return the explanation for the error of a rejected problem; None if an engine supports the graph."""
    # It is kept for further errors. An error while explaining does not replace the error that is explained.
    # Changed graphs are not planned: an error must not depend on how cuDNN handles other graphs.
    key = repr(graph), context.library.version, compute_capability(context)
    found: Explanation | None = _known.get(key)
    if found is None:
        try:
            found = _known[key] = explain_graph(graph, context, str(problem), changes=False)
        except Exception:  # whatever it is, the error that is explained matters
            return None
    return None if found.supported else found


_known = BoundedDict(MAX_KNOWN)


def _reasons(rows: list[EngineLines], facts: dict[str, Any]) -> Iterator[Reason]:
    """Yield the reasons of engines, those with the same words together."""
    found: dict[tuple[str, str], tuple[list[int], str]] = {}
    for row in rows:
        kind, words, line = translated(row.lines, facts) if row.lines else ("engine", NOT_OFFERED, "")
        found.setdefault((kind, words), ([], line))[0].append(row.number)
    for (kind, words), (engines, line) in sorted(found.items(), key=lambda one: KINDS.index(one[0][0])):
        yield Reason(() if engines == [ALL] else tuple(engines), kind, words, line)


class Translation(NamedTuple):
    """A row of translations.json: plain words for a kind of line in which cuDNN rejects a graph."""

    # Lines of functions that pass an error on (`check_for_support()`) have no row.
    must_change: str  # one of `KINDS`
    pattern: str  # searched for in cuDNN's own sentence, the condition that failed, or both: versions differ
    # The fields of these two are the facts of `facts_of` and named groups of the pattern.
    have: str  # states facts of the graph; omitted if the graph lacks one
    must: str  # says ``must_change`` in words
    seen: list[str]  # the versions of cuDNN that printed the line


# The first row that matches a line is used.
_SECTIONS = json.loads(resource("cudnn_ct/graph/translations.json"))
TRANSLATIONS = tuple(Translation(**row) for row in chain.from_iterable(_SECTIONS.values()))


def translated(lines: tuple[Line, ...], facts: dict[str, Any]) -> tuple[str, str, str]:
    """Return what must change, the reason in plain words, and cuDNN's line, for the lines of one engine."""
    # The first line that names a property of the graph is taken, then one that names the GPU, and so on. A
    # line without a translation is returned as it is; what must change is known from its status.
    found = [one for one in (_translated(line, facts) for line in lines) if one is not None]
    found = found or [("other", lines[0].text, lines[0].text)]
    return min(found, key=lambda one: KINDS.index(one[0]))


def _translated(line: Line, facts: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return the translation of one line; None for a line that only passes an error on."""
    for row in TRANSLATIONS:
        match = re.search(row.pattern, line.text)
        if match is not None:
            return row.must_change, _worded(row, match, facts), line.text
    if _CALL.fullmatch(line.text):
        return None
    words, _, condition = line.text.partition(" at: ")
    kind = next((kind for status, kind in _STATUSES.items() if line.status.startswith(status)), "other")
    return (kind, words, line.text) if condition else ("other", line.text, line.text)


_CALL = re.compile(r"!?[\w.:>*\[\]-]+\(.*\)|status|\(CUDNN_STATUS_NOT_INITIALIZED == status\).*")
_STATUSES = {
    "CUDNN_STATUS_BAD_PARAM": "graph",
    "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH": "gpu",
    "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE": "graph",
    "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT": "graph",
    "CUDNN_STATUS_NOT_SUPPORTED_PADDING": "graph",
    "CUDNN_STATUS_NOT_SUPPORTED_SHAPE": "graph",
}


def _worded(row: Translation, match: re.Match[str], facts: dict[str, Any]) -> str:
    """Return the sentence of a row; its facts are left out if the graph lacks one of them."""
    try:
        have = row.have.format(**{**facts, **match.groupdict()})
    except (KeyError, AttributeError, IndexError):
        have = ""
    must = row.must.format(**{**facts, **match.groupdict()}) if "{" in row.must else row.must
    return f"{have}: {must}" if have else must


# --- facts -------------------------------------------------------------------------------------------------


def facts_of(graph: Graph, capability: tuple[int, int]) -> dict[str, Any]:
    """Return the facts of a graph that sentences name: tensors, compute types, modes, and the GPU."""
    facts: dict[str, Any] = {"gpu": ".".join(map(str, capability))}
    facts["operations"] = ", ".join(one.row for one in graph.nodes)
    computed: list[str] = []
    for one in graph.nodes:
        for attribute, value in one.attributes.items():
            if attribute in COMPUTE:
                computed.append(str(value))
            elif isinstance(value, Tensor):
                facts.setdefault(name_of(attribute), value.spec)
            elif isinstance(value, str):
                facts.setdefault(attribute, value)
    for gradient, name in (("dx", "x"), ("dw", "w"), ("dy", "y")):
        if gradient in facts:
            facts.setdefault(name, facts[gradient])
    facts["compute"] = " and ".join(dict.fromkeys(computed)) or "float32"
    facts["dtypes"] = " and ".join(dict.fromkeys(one.spec.dtype for one in graph.operands))
    # Of the tensors of the first node, such as "x nhwc, w nchw".
    first = {name: one for name, one in graph.nodes[0].attributes.items() if isinstance(one, Tensor)}
    images = {name_of(name): one.spec for name, one in first.items() if len(one.spec.shape) > 3}
    layouts = (f"{name} {spec.layout or f'of strides {spec.strides}'}" for name, spec in images.items())
    facts["layouts"] = ", ".join(layouts)
    return facts


# --- cuDNN's own reasons: a line for each engine -----------------------------------------------------------

# cuDNN's last error text has one line, or none. A callback receives the line of every check that failed.
# It is set only after planning has failed, so that successful calls have no additional cost.

LEVELS = 1 << 1 | 1 << 2  # errors and warnings; the level below also prints every argument of every call
_HEAD = re.compile(r"\s*(?:Warning|Error): (CUDNN_STATUS_\w+); Reason: (.*)", re.DOTALL)
_ADDRESS = re.compile(r"0x[0-9a-f]+")
KNOB_NEEDED = ("knob must be set", "process_knob_choices()")  # the latter in cuDNN 9.19
MAX_VALUES = 64
_lock = threading.RLock()  # the callback belongs to the process


class _Thread(threading.local):
    """The lines that this thread records; None if it does not record."""

    lines: list[Line] | None = None


_thread = _Thread()


class Line(NamedTuple):
    """One failed check: cuDNN's status, and its text."""

    status: str
    text: str


class EngineLines(NamedTuple):
    """The failed checks of one engine, the first cause first; ``number`` is -1 for the graph itself."""

    number: int
    lines: tuple[Line, ...]


def parse(text: str) -> Line | None:
    """Parse a line of a message; None if it is not a failed check.

    >>> parse("    Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: Engine 5 is not enabled for MATMUL at: true")
    Line(status='CUDNN_STATUS_NOT_SUPPORTED', text='Engine 5 is not enabled for MATMUL at: true')
    """
    found = _HEAD.fullmatch(text)
    return Line(found[1], " ".join(found[2].split())) if found else None


@contextmanager
def recorded(library: Any) -> Iterator[list[Line]]:
    """Record cuDNN's failed checks of this thread, and restore the callback that was there before."""
    # Messages of other threads go to that callback only after the recording. Threads record one after
    # another.
    lines: list[Line] = []
    with _lock:
        mask, user_data, previous = ctypes.c_uint(), ctypes.c_void_p(), cudnnCallback_t()
        library.cudnnGetCallback(ctypes.byref(mask), ctypes.byref(user_data), ctypes.byref(previous))
        library.cudnnSetCallback(LEVELS, None, _callback())
        outer, _thread.lines = _thread.lines, lines
        try:
            yield lines
        finally:
            _thread.lines = outer
            library.cudnnSetCallback(mask.value, user_data, previous)


@cache
def _callback() -> Any:
    """Return the function that cuDNN calls with messages, which is never freed."""
    # Another thread may have read its address before the recording ended, and call it afterwards.
    return cudnnCallback_t(_record)


def _record(severity: int, user_data: Any, debug: Any, message: Any) -> None:  # noqa: ARG001
    if _thread.lines is not None:
        found = (parse(text.decode("utf-8", "replace")) for text in message.lines())
        _thread.lines.extend(line for line in found if line is not None)


def lines_of_graph(graph: Graph, context: Context | Planner) -> list[EngineLines]:
    """Return the failed checks of each engine, or of the graph with the number -1; nothing is compiled."""
    if not isinstance(context, Planner):
        context.last_graph = None  # made again, while the callback is there
    with recorded(context.library) as lines:
        native = attempt(operation_graph, graph, context)
        if isinstance(native, CudnnError):
            return [EngineLines(-1, tuple(lines) or (Line("", native.detail or str(native)),))]
        rows = []
        for number in range(native.one("engine_global_count")):
            del lines[:]
            supported = _supports(native, number, context, lines)
            rows.append(EngineLines(number, () if supported else _causes(lines)))
    return rows


def _causes(lines: list[Line]) -> tuple[Line, ...]:
    """Return the lines of an engine without repetition; addresses differ from run to run."""
    cleaned = (line._replace(text=_ADDRESS.sub("0x..", line.text)) for line in lines)
    return tuple(dict.fromkeys(cleaned)) or (Line("", "no reason"),)


def _supports(native: BackendDescriptor, number: int, context: Context | Planner, lines: list[Line]) -> bool:
    """Return whether an engine supports a graph: then the size of its workspace is known."""
    engine = attempt(engine_descriptor, native, number, context)
    if isinstance(engine, CudnnError):
        return False
    if _has_workspace(engine, ()):
        return True
    if not any(text in line.text for line in lines for text in KNOB_NEEDED):
        return False
    # Engines for attention have no default for the first of their knobs.
    del lines[:]
    first = engine.children("knob_info", "knob_info", engine.count("knob_info"))[0]
    values = range(first.one("minimum_value"), first.one("maximum_value") + 1)[:MAX_VALUES]
    kind = knob_number(first.one("type"))
    return any(_has_workspace(engine, ((kind, value),)) for value in values)


def _has_workspace(engine: BackendDescriptor, knobs: Knobs) -> bool:
    size = attempt(lambda: engine_config(engine, knobs).one("workspace_size"))
    return not isinstance(size, CudnnError)
