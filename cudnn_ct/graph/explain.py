"""Explain why cuDNN rejects a graph: the property that must change, for each engine, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._caches import BoundedDict
from ..context import Context
from ..errors import BadParamError, CudnnError, NotSupportedError, format_version
from ..shapes.specs import TensorSpec
from .changes import COMPUTE, MODES, name_of, supported_changes
from .engines import heuristic_configs
from .offline import Planner, compute_capability
from .operations import Graph, Node, Tensor, operation_graph
from .reasons import EngineLines, Line, lines_of_graph
from .translations import TRANSLATIONS, Translation

__all__ = ["Explanation", "Reason", "explain_graph", "explanation_of_rejection", "facts_of", "translated"]

KINDS = ("graph", "gpu", "engine", "other")  # what must change, the most useful first
ALL = -1  # the number that stands for the graph itself
MAX_KNOWN = 64  # explanations that are kept for further errors
NOT_OFFERED = "cuDNN's heuristics do not offer this engine; it may fail when it is compiled"
MAX_SHOWN = 3  # reasons in the message of an error


class Reason(NamedTuple):
    """Why some engines reject a graph.

    Attributes
    ----------
    engines : tuple of int
        Their numbers; empty if cuDNN rejects the graph before it looks for an engine.
    must_change : str
        The property that must change: ``"graph"`` (dtypes, shapes, layouts, operations), ``"gpu"``, or
        ``"engine"`` (its knobs, or how it is made); ``"other"`` if it is not known.
    words : str
        The reason in plain words, or cuDNN's own line if it has no translation.
    line : str
        cuDNN's own line.
    """

    engines: tuple[int, ...]
    must_change: str
    words: str
    line: str

    def __str__(self) -> str:
        who = f"{'engine' if len(self.engines) == 1 else 'engines'} {_ranges(self.engines)}: "
        line = self.line.partition(" at: ")[0]  # without the condition in cuDNN's sources
        behind = "" if line in ("", self.words) else f" (cuDNN: {line})"
        return f"{who if self.engines else ''}{self.words}{behind}"


class Explanation(NamedTuple):
    """Why cuDNN supports a graph or not; ``print`` it.

    Attributes
    ----------
    problem : str
        The operation or graph, and the GPU.
    supported : tuple of int
        Numbers of the engines that support it.
    changes : tuple of str
        Changes of one property, of which each suffices for an engine to support it.
    reasons : tuple of Reason
        Why the other engines reject it: those first that name a property of the graph.
    computed_by : str
        How the call was computed, if one was explained that is supported.
    graph : optional
        The graph, from ``cudnn_ct.graph.operations``.
    """

    problem: str
    supported: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    computed_by: str = ""
    graph: Graph | None = None

    def summary(self) -> list[str]:
        """Return the most useful reasons, one a line, for the message of an error."""
        shown = [one for one in self.reasons if one.must_change != "engine"][:MAX_SHOWN] or [
            *self.reasons[:1]
        ]
        lines = [f"reason: {reason}" for reason in shown]
        left = len(self.reasons) - len(shown)
        return [*lines, f"({left} more: print the error's explanation)"] if left else lines

    def __str__(self) -> str:
        how = _named(self.supported) if self.supported else self.computed_by
        lines = [f"{self.problem} {f'is supported by {how}' if how else 'is not supported'}"]
        if self.changes:
            lines.append(
                "one of these changes is enough:" if len(self.changes) > 1 else "this change is enough:"
            )
            lines += [f"  {change}" for change in self.changes]
        if self.reasons:
            lines.append("rejected by:" if self.supported else "reasons:")
            lines += [f"  {reason}" for reason in self.reasons]
        return "\n".join(lines)


def explain_graph(
    graph: Graph, context: Context | Planner, problem: str = "", *, changes: bool = True
) -> Explanation:
    """Return why cuDNN supports a graph or not, on the device of a context or of a planner.

    The graph is planned once more with each engine, without compiling. If no engine supports it, and
    ``changes`` is set, it is also planned with single properties changed. Takes milliseconds, and up to a
    second for a norm.
    """
    where = f" on {context.description.get('deviceName', 'this GPU')}" if isinstance(context, Planner) else ""
    what = problem or f"a graph of {', '.join(one.row for one in graph.nodes)}"
    about = f"{what}{where}, cuDNN {format_version(context.library.version)},"
    rows = lines_of_graph(graph, context)
    supported = tuple(sorted(_offered(graph, context)))
    rows = [row for row in rows if row.number not in supported]
    found = tuple(supported_changes(graph, context)) if changes and not supported else ()
    facts = facts_of(graph, compute_capability(context))
    return Explanation(about, supported, found, tuple(_reasons(rows, facts)), graph=graph)


def _offered(graph: Graph, context: Context | Planner) -> set[int]:
    """Return the engines that the heuristics offer; others may fail when they are compiled."""
    try:
        return {
            offer.engine.number
            for offer in heuristic_configs(operation_graph(graph, context), context, MODES)
        }
    except (NotSupportedError, BadParamError):
        return set()


def explanation_of_rejection(graph: Graph, context: Context | Planner, problem: Any) -> Explanation | None:
    """Return the explanation for the error of a rejected problem; None if an engine supports the graph.

    It is kept for further errors. An error while explaining does not replace the error that is explained.
    Changed graphs are not planned: an error must not depend on how cuDNN handles other graphs.
    """
    key = repr(graph), context.library.version, compute_capability(context)
    found: Explanation | None = _known.get(key)
    if found is None:
        try:
            found = _known[key] = explain_graph(graph, context, str(problem), changes=False)
        except CudnnError:
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


def translated(lines: tuple[Line, ...], facts: dict[str, Any]) -> tuple[str, str, str]:
    """Return what must change, the reason in plain words, and cuDNN's line, for the lines of one engine.

    The first line that names a property of the graph is taken, then one that names the GPU, and so on. A line
    without a translation is returned as it is; what must change is known from its status.
    """
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
        have = row.have.format(**facts, **match.groupdict())
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
    facts["layouts"] = _layouts(graph.nodes)
    return facts


def _layouts(nodes: tuple[Node, ...]) -> str:
    """Return the layout of each tensor of the first node, such as ``"x nhwc, w nchw"``."""
    tensors = {
        name_of(name): value for name, value in nodes[0].attributes.items() if isinstance(value, Tensor)
    }
    return ", ".join(
        f"{name} {_layout(tensor.spec)}" for name, tensor in tensors.items() if len(tensor.spec.shape) > 3
    )


def _layout(spec: TensorSpec) -> str:
    return spec.layout or f"of strides {spec.strides}"


def _named(engines: tuple[int, ...]) -> str:
    return f"{'engine' if len(engines) == 1 else 'engines'} {_ranges(engines)}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers with ranges: ``"0 to 7, 12"``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )
