"""Knobs of an engine: the ranges of their choices, from which settings are made that no heuristic returns."""

from __future__ import annotations

from cudnn_ct._bindings.enums import BackendKnobType
from cudnn_ct.context import Context
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.native import operation_graph
from cudnn_ct.graph.offline import Planner, target
from cudnn_ct.graph.operations import Graph
from cudnn_ct.graph.plan import BackendDescriptor


def knob_ranges(graph: Graph, number: int, context: Context | Planner) -> dict[int, range]:
    """Return the choices of each knob of an engine by the knob's type; not all settings are supported.

    Raises
    ------
    NotSupportedError
        The engine does not support the graph.
    """
    native = operation_graph(graph, context)
    engine = BackendDescriptor(
        native.library, "engine", operation_graph=native, global_index=number, **target(context, "engine")
    )
    found = {}
    for knob in engine.children("knob_info", "knob_info", engine.count("knob_info")):
        name, low, high, step = (knob.one(f) for f in ("type", "minimum_value", "maximum_value", "stride"))
        kind = int(name) if name.isdecimal() else int(BackendKnobType[name.upper()])
        found[kind] = range(low, high + 1, max(step, 1))
    return found


def neighbours(engine: Engine, ranges: dict[int, range]) -> list[Engine]:
    """Return the settings that differ from an engine's in one knob.

    >>> [str(one) for one in neighbours(Engine(3, ((24, 0), (30, 1))), {24: range(2), 30: range(2)})]
    ['engine 3 knobs 24=1,30=1', 'engine 3 knobs 24=0,30=0']
    """
    given = dict(engine.knobs)
    return [
        Engine(engine.number, tuple((given | {kind: choice}).items()))
        for kind, choices in ranges.items()
        if kind in given
        for choice in choices
        if choice != given[kind]
    ]
