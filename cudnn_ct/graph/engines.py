"""Engines of a graph: the answers of cuDNN's heuristics, and execution plans."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple, Self

from .._bindings.enums import BackendKnobType
from ..context import Context
from ..errors import AllocationError, CudnnError, ExecutionFailedError, NotSupportedError
from ..facts import facts, ignores
from .offline import Planner, ShapesOnly, target, target_of
from .operations import Graph
from .plan import BackendDescriptor

Knobs = tuple[tuple[int, int], ...]

# Best first: B ranks better than A, and engines of the fallback list alone are many times slower.
HEURISTICS = ("b", "a", "fallback")


class Engine(NamedTuple):
    """An engine with its knobs set: its index among all of cuDNN's, and (type, choice) of each knob.

    >>> str(Engine(38, ((2, 0), (5, 1))))
    'engine 38 knobs 2=0,5=1'
    """

    number: int
    knobs: Knobs = ()

    def __str__(self) -> str:
        knobs = ",".join(f"{knob}={choice}" for knob, choice in self.knobs)
        return f"engine {self.number} knobs {knobs}" if knobs else f"engine {self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that ``str`` returns; raise ValueError unless it is the name of an engine.

        >>> Engine.parse("engine 38 knobs 2=0,5=1").knobs
        ((2, 0), (5, 1))
        """
        index, _, knobs = text.removeprefix("engine ").partition(" knobs ")
        pairs = [pair.split("=") for pair in knobs.split(",")] if knobs else []
        try:
            engine = cls(int(index), tuple((int(knob), int(choice)) for knob, choice in pairs))
        except ValueError:
            engine = None
        # C takes larger numbers modulo 2**64: another engine than the one the errata are checked for. The
        # types of knobs are of an enum, the others are int64_t.
        fits = (
            engine is not None
            and 0 <= engine.number < 2**63
            and all(0 <= knob < 2**31 and -(2**63) <= choice < 2**63 for knob, choice in engine.knobs)
        )
        if engine is None or str(engine) != text or not fits:
            raise ValueError(
                f"invalid engine: got {text!r}, expected one like 'engine 38' or 'engine 38 knobs 2=0,5=1', "
                "with numbers that C's int64_t holds"
            )
        return engine


class EngineConfig(NamedTuple):
    """An engine for a graph, with its workspace and its notes."""

    engine: Engine
    workspace: int
    notes: tuple[str, ...]


def heuristic_configs(
    graph: BackendDescriptor,
    context: Context | Planner,
    heuristics: Iterable[str] = HEURISTICS,
    room: int | None = None,
) -> Iterator[EngineConfig]:
    """Yield the engines that the heuristics return for a native graph, best first, without repetition.

    ``room`` limits the number of engines that are read from each mode, because each takes tens of calls of
    cuDNN. The next mode is queried only after all engines of the previous one were consumed. If no mode has
    an engine, NotSupportedError is raised, with the error of each mode in its notes.
    """
    seen: set[Engine] = set()
    reasons = []
    facts: dict[int, tuple[int, tuple[str, ...]]] = {}
    for mode in heuristics:
        try:
            device = target(context, "engineheur")
            native = BackendDescriptor(
                graph.library, "engineheur", operation_graph=graph, mode=mode, **device
            )
            configs = native.children("results", "enginecfg", room)
        except NotSupportedError as rejected:
            reasons.append(f"heuristics {mode}: {rejected}")
            continue
        for config in configs:
            offer = _offer(config, facts)
            if offer.engine not in seen:
                seen.add(offer.engine)
                yield offer
    if not seen:
        error = NotSupportedError("cuDNN's heuristics have no engine for this graph")
        for reason in reasons:
            error.add_note(reason)
        raise error


def offer_of(
    graph: BackendDescriptor, engine: Engine, context: Context | Planner, unwanted: Container[str] = ()
) -> EngineConfig | None:
    """Return an engine's configuration; None if it rejects the graph, or has an ``unwanted`` note."""
    try:
        native = engine_descriptor(graph, engine.number, context)
        notes = _notes(native)
        if any(note in unwanted for note in notes):
            return None
        plan = _plan_of(native, engine.knobs, context, graph.kernel_cache)
    except (AllocationError, ExecutionFailedError):  # transient failures
        raise
    except CudnnError:  # older versions report an unsupported engine as an internal error
        return None
    return EngineConfig(engine, plan.one("workspace_size"), notes)


def execution_plan(
    graph: BackendDescriptor, engine: Engine, context: Context | Planner, unwanted: Container[str] = ()
) -> BackendDescriptor:
    """Build a plan; raise NotSupportedError if the engine has an ``unwanted`` note or rejects the graph."""
    native = engine_descriptor(graph, engine.number, context)
    found = [note for note in _notes(native) if note in unwanted] if unwanted else []
    if found:
        raise NotSupportedError(f"{engine} is excluded by its notes: {', '.join(found)}")
    return _plan_of(native, engine.knobs, context, graph.kernel_cache)


def plan_to_json(plan: BackendDescriptor) -> str:
    """Write an execution plan as JSON: the graph, the device and the engine with its knobs."""
    return str(plan.get("json_representation"))


def engine_descriptor(graph: BackendDescriptor, index: int, context: Context | Planner) -> BackendDescriptor:
    """Return the native engine of an index among all of cuDNN's for a graph."""
    return BackendDescriptor(
        graph.library, "engine", operation_graph=graph, global_index=index, **target(context, "engine")
    )


def engine_config(engine: BackendDescriptor, knobs: Knobs) -> BackendDescriptor:
    """Return the native configuration of an engine; its workspace is known without compiling."""
    library = engine.library
    choices = [
        BackendDescriptor(library, "knob_choice", knob_type=knob, knob_value=choice) for knob, choice in knobs
    ]
    return BackendDescriptor(library, "enginecfg", engine=engine, knob_choices=choices or None)


def _plan_of(
    engine: BackendDescriptor, knobs: Knobs, context: Context | Planner, cache: BackendDescriptor | None
) -> BackendDescriptor:
    return BackendDescriptor(
        engine.library,
        "execution_plan",
        **target(context, "execution_plan"),
        engine_config=engine_config(engine, knobs),
        kernel_cache=cache,
    )


def _offer(config: BackendDescriptor, facts: dict[int, tuple[int, tuple[str, ...]]]) -> EngineConfig:
    """Read a configuration; ``facts`` caches the attributes of an engine that its knobs do not change."""
    engine = config.child("engine", "engine")
    index = engine.one("global_index")
    if index not in facts:
        facts[index] = engine.count("knob_info"), _notes(engine)
    knobs, notes = facts[index]
    return EngineConfig(Engine(index, _knobs(config, knobs)), config.one("workspace_size"), notes)


def _notes(engine: BackendDescriptor) -> tuple[str, ...]:
    return (*engine.get("numerical_note"), *engine.get("behavior_note"))


def _knobs(config: BackendDescriptor, count: int) -> Knobs:
    # cuDNN reports a count of 0 for this attribute: there is one choice for each knob of the engine.
    choices = config.children("knob_choices", "knob_choice", count)
    return tuple((knob_number(choice.one("knob_type")), choice.one("knob_value")) for choice in choices)


def knob_number(name: str) -> int:
    """Return the number of a kind of knob; a kind that only a newer cuDNN names is one already."""
    return int(name) if name.isdecimal() else int(BackendKnobType[name.upper()])


def heuristic_modes(graph: Graph, context: Context | Planner | ShapesOnly) -> tuple[str, ...]:
    """Return the heuristic modes for a graph, best first: facts of the kind ``modes`` exclude some."""
    nodes = [one.attributes for one in graph.nodes]
    if not [one for one in nodes if one.get("pre_paddings") != one.get("post_paddings")]:
        return HEURISTICS
    known = [fact for fact in facts("modes", "convolution", target_of(context)) if not ignores(fact.name)]
    return tuple(mode for mode in HEURISTICS if not any(mode in fact.row["modes"] for fact in known))
