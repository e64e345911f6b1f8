"""Engines: what cuDNN's heuristics offer for a graph, and execution plans of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple, Self

from .._bindings.enums import BackendKnobType
from ..errors import AllocationError, CudnnError, ExecutionFailedError, NotSupportedError
from .backend import BackendDescriptor
from .offline import target

__all__ = [
    "HEURISTICS",
    "Engine",
    "EngineConfig",
    "enumerate_engines",
    "execution_plan",
    "heuristic_configs",
    "offer_of",
    "plan_from_json",
    "plan_to_json",
]

Knobs = tuple[tuple[int, int], ...]

# Best first: B ranks better than A, and what only the fallback list has is many times slower.
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
        """Read back what ``str`` wrote.

        Raises
        ------
        ValueError
            It is not the name of an engine.

        Examples
        --------
        >>> Engine.parse("engine 38 knobs 2=0,5=1").knobs
        ((2, 0), (5, 1))
        """
        match text.split(" "):
            case ["engine", index]:
                pairs = []
            case ["engine", index, "knobs", knobs]:
                pairs = [pair.split("=") for pair in knobs.split(",")]
            case _:
                index, pairs = "", []
        try:
            engine = cls(int(index), tuple((int(knob), int(choice)) for knob, choice in pairs))
        except ValueError:
            engine = None
        # ctypes takes larger numbers modulo 2**64: another engine than the one the errata are checked for.
        if engine is None or str(engine) != text or not engine._fits:
            raise ValueError(
                f"invalid engine: got {text!r}, expected one like 'engine 38' or 'engine 38 knobs 2=0,5=1', "
                "with numbers that C's int64_t holds"
            )
        return engine

    @property
    def _fits(self) -> bool:
        """Whether C holds the numbers: the types of knobs are of an enum, the others are int64_t."""
        return 0 <= self.number < 2**63 and all(
            0 <= knob < 2**31 and -(2**63) <= choice < 2**63 for knob, choice in self.knobs
        )


class EngineConfig(NamedTuple):
    """An engine that the heuristics have for a graph, with what cuDNN says of it."""

    engine: Engine
    workspace: int
    notes: tuple[str, ...]


def heuristic_configs(
    graph: BackendDescriptor, context: Any, heuristics: Iterable[str] = HEURISTICS
) -> Iterator[EngineConfig]:
    """Ask the heuristics for engines that can compute a native graph, best first, each once.

    Lazy: the next mode is asked only when all offers of the one before are taken.

    Raises
    ------
    NotSupportedError
        No mode has an engine; the notes say what cuDNN said in each.
    """
    seen: set[Engine] = set()
    refusals = []
    facts: dict[int, tuple[int, tuple[str, ...]]] = {}
    for mode in heuristics:
        try:
            configs = _ask(graph, mode, context)
        except NotSupportedError as error:
            refusals.append(f"heuristics {mode}: {error}")
            continue
        for config in configs:
            offer = _offer(config, facts)
            if offer.engine not in seen:
                seen.add(offer.engine)
                yield offer
    if not seen:
        nothing = NotSupportedError("cuDNN's heuristics have no engine for this graph")
        for refusal in refusals:
            nothing.add_note(refusal)
        raise nothing


def enumerate_engines(
    graph: BackendDescriptor, context: Any, unwanted: Container[str]
) -> Iterator[EngineConfig]:
    """Try every engine that there is on a native graph, with cuDNN's defaults for all knobs.

    The heuristics answer with some forty configurations at most. Where engines that are wanted only for their
    speed take all of these, the others are found in this way. It takes milliseconds. Engines with an
    ``unwanted`` note are left out.
    """
    for index in range(graph.one("engine_global_count")):
        found = offer_of(graph, Engine(index), context, unwanted)
        if found is not None:
            yield found


def offer_of(
    graph: BackendDescriptor, engine: Engine, context: Any, unwanted: Container[str] = ()
) -> EngineConfig | None:
    """Try one engine on a native graph: None where it cannot compute it, or has an ``unwanted`` note."""
    try:
        native = _engine(graph, engine.number, context)
        notes = _notes(native)
        if any(note in unwanted for note in notes):
            return None
        plan = _plan_of(native, engine.knobs, context)
    except (AllocationError, ExecutionFailedError):  # which say nothing of the engine
        raise
    except CudnnError:  # older ones call an engine that lacks something an internal error
        return None
    return EngineConfig(engine, plan.one("workspace_size"), notes)


def execution_plan(
    graph: BackendDescriptor, engine: Engine, context: Any, unwanted: Container[str] = ()
) -> BackendDescriptor:
    """Make an engine ready to compute a native graph.

    Raises
    ------
    NotSupportedError
        The engine cannot do it, whatever the heuristics said, or has an ``unwanted`` note.
    """
    native = _engine(graph, engine.number, context)
    found = [note for note in _notes(native) if note in unwanted] if unwanted else []
    if found:
        raise NotSupportedError(f"{engine} is not wanted: {', '.join(found)}")
    return _plan_of(native, engine.knobs, context)


def plan_to_json(plan: BackendDescriptor) -> str:
    """Write an execution plan as JSON: the graph, the device and the engine with its knobs."""
    return str(plan.get("json_representation"))


def plan_from_json(text: str, context: Any) -> BackendDescriptor:
    """Read an execution plan back, for a device like the one it was written for."""
    return BackendDescriptor(
        context.library,
        "execution_plan",
        **target(context, "execution_plan"),
        json_representation=text.encode(),
    )


def _engine(graph: BackendDescriptor, index: int, context: Any) -> BackendDescriptor:
    return BackendDescriptor(
        graph.library, "engine", operation_graph=graph, global_index=index, **target(context, "engine")
    )


def _plan_of(engine: BackendDescriptor, knobs: Knobs, context: Any) -> BackendDescriptor:
    library = engine.library
    choices = [
        BackendDescriptor(library, "knob_choice", knob_type=knob, knob_value=choice) for knob, choice in knobs
    ]
    config = BackendDescriptor(library, "enginecfg", engine=engine, knob_choices=choices or None)
    return BackendDescriptor(
        library, "execution_plan", **target(context, "execution_plan"), engine_config=config
    )


def _ask(graph: BackendDescriptor, mode: str, context: Any) -> list[BackendDescriptor]:
    heuristics = BackendDescriptor(
        graph.library, "engineheur", operation_graph=graph, mode=mode, **target(context, "engineheur")
    )
    return heuristics.children("results", "enginecfg")


def _offer(config: BackendDescriptor, facts: dict[int, tuple[int, tuple[str, ...]]]) -> EngineConfig:
    """Read a configuration. What is the engine's, whatever its knobs, is read once and kept in ``facts``."""
    engine = config.child("engine", "engine")
    index = engine.one("global_index")
    if index not in facts:
        facts[index] = engine.count("knob_info"), _notes(engine)
    knobs, notes = facts[index]
    return EngineConfig(Engine(index, _knobs(config, knobs)), config.one("workspace_size"), notes)


def _notes(engine: BackendDescriptor) -> tuple[str, ...]:
    return (*engine.get("numerical_note"), *engine.get("behavior_note"))


def _knobs(config: BackendDescriptor, count: int) -> Knobs:
    # cuDNN announces no choices before it is asked for some: there is one for each knob of the engine.
    choices = config.children("knob_choices", "knob_choice", count)
    return tuple((_knob_type(choice), choice.one("knob_value")) for choice in choices)


def _knob_type(choice: BackendDescriptor) -> int:
    name = choice.one("knob_type")
    return int(name) if name.isdecimal() else int(BackendKnobType[name.upper()])
