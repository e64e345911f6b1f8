"""The rules that facts make for a problem: rejected engines, their order, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from .._algorithm_names import is_engine
from ..errors import format_version, warn_caller
from ..facts import Fact, Target, warn_if_late
from ..graph.engines import Engine
from ..graph.offline import target_of
from ..graph.rules import EngineRules, Named, Rejection
from .conditions import applying, check_user_facts, is_exact, rounds_to
from .rows import FAMILIES
from .subjects import Subject, subjects_of

_COARSE = frozenset({"tensor_core", "down_convert_inputs"})


@lru_cache(maxsize=256)
def engine_rules(problem: Any, target: Target) -> EngineRules:
    """Return the rules for the engines of a problem."""
    warn_if_late()
    excluded, coarser_than = _precision(problem)
    rules = rules_of_subjects(subjects_of(problem), target)
    return rules._replace(excluded=excluded, coarser_than=coarser_than)


def rules_of_subjects(subjects: tuple[Subject, ...], target: Target) -> EngineRules:
    """Return the rules for the engines of a graph with these subjects, whatever its precision."""
    products = [subject for subject in subjects if subject[0] == "matmul"]  # others order their candidates
    return EngineRules(
        rejections=tuple(_rejections(subjects, target)),
        last=tuple(Engine.parse(one.engine).number for one in _named("last", subjects, target)),
        first=tuple(
            one
            for one in _named("first", products, target._replace(capability=None))
            if is_engine(one.engine)
        ),
        unordered=any(_holding("unordered", subjects, target)),
    )


def more_engines(subject: Subject, target: Target) -> tuple[str, ...]:
    """Return names of engines that are timed besides those of the heuristics."""
    return tuple(name for fact in applying("also", subject, target) for name in fact.row["order"])


def more_engines_of(problem: Any) -> tuple[str, ...]:
    """Return the same for a problem of one subject."""
    (subject,) = subjects_of(problem)
    return more_engines(subject, target_of(None))


def others_first(problem: Any, target: Target) -> tuple[str, ...]:
    """Return names of algorithms that are not engines of the graph, and are tried before these."""
    named = _named("first", subjects_of(problem), target)
    return tuple(one.engine for one in named if not is_engine(one.engine))


def rejection_of(problem: Any, algorithm: str, target: Target) -> str:
    """Return why a legacy algorithm must not compute a problem; empty if it may."""
    for algorithms, reason in _rejected_algorithms(subjects_of(problem), target):
        if algorithms is None or algorithm in algorithms:
            return reason
    return ""


def why_not_asked(problem: Any, target: Target) -> str:
    """Return why cuDNN must not be asked about a problem, as it ends the process; empty if it may."""
    rejecting = _holding("reject", subjects_of(problem), target)
    return next((fact.reason for fact in rejecting if fact.effect in ("crash", "hang")), "")


@lru_cache(maxsize=256)
def _rejected_algorithms(subjects: tuple[Subject, ...], target: Target) -> tuple[tuple[Any, str], ...]:
    """Return legacy algorithms that must not compute a problem, None for all of them, with the reasons."""
    warn_if_late()
    found: list[tuple[Sequence[str] | None, str]] = []
    for subject in subjects:
        found += [(None, fact.reason) for fact in applying("reject", subject, target)]
        known = [fact for fact in applying("engine", subject, target) if "algorithms" in fact.row]
        found += [(fact.row["algorithms"], _reason(fact, subject)) for fact in known]
    return tuple(found)


# --- parts of the rules ------------------------------------------------------------------------------------


def _rejections(subjects: tuple[Subject, ...], target: Target) -> Iterator[Rejection]:
    anywhere = target._replace(capability=None)  # recorded graphs are planned for other GPUs
    for subject in subjects:
        for fact in applying("reject", subject, anywhere):
            yield Rejection(fact.reason, arch=fact.arch, fact=fact.name)
        for fact in applying("engine", subject, anywhere):
            row = fact.row
            yield Rejection(
                _reason(fact, subject),
                engines=tuple(row.get("engines", ())),
                but=tuple(row.get("engines_except", ())),
                notes=(*row.get("with_notes", ()), *row.get("algorithms", ())),
                without=tuple(row.get("without_notes", ())),
                knobs=tuple((int(knob), tuple(values)) for knob, values in row.get("knobs", {}).items()),
                slices=row["min_slices"] - 1 if "min_slices" in row else 0,
                arch=fact.arch,
                fact=fact.name,
            )


def _named(kind: str, subjects: Iterable[Subject], target: Target) -> Iterator[Named]:
    for fact in _holding(kind, subjects, target):
        yield from (Named(name, fact.arch) for name in fact.row["order"])


def _reason(fact: Fact, subject: Subject) -> str:
    if fact.effect == "inaccurate" and FAMILIES[subject[0]] == "convolutions":
        return f"error above the bound of precision {rounds_to(subject[1].core)}: {fact.reason}"
    return fact.reason


def _holding(kind: str, subjects: Iterable[Subject], target: Target) -> Iterator[Fact]:
    for subject in subjects:
        yield from applying(kind, subject, target)


def _precision(problem: Any) -> tuple[frozenset[str], str]:
    """Return the notes of engines that are coarser than a problem allows, and its precision."""
    if type(problem).__name__ == "GraphProblem":
        return (_COARSE if is_exact(problem) else frozenset()), "float32"
    if (core := getattr(problem, "core", None)) is None:
        return frozenset(), ""
    excluded = frozenset() if core.tensor_cores else _COARSE
    if core.compute in ("float64", "int32"):  # tensor cores are as precise as other units
        excluded -= {"tensor_core"}
    return excluded, core.compute


# --- warnings ----------------------------------------------------------------------------------------------


def warn(problem: Any, target: Target, handled: tuple[str, ...] = ()) -> None:
    """Warn once of each fact that may affect a problem and that no choice of an engine avoids.

    ``handled`` are the names of facts that the caller computes around.
    """
    for subject in subjects_of(problem):
        for kind in ("warn", "rewrite"):
            for fact in applying(kind, subject, target):
                if fact.name not in handled:
                    _warn(target.version, fact.reason)


@lru_cache(maxsize=256)
def _warn(version: int, reason: str) -> None:
    warn_caller(f"cuDNN {format_version(version)} has a known defect: {reason}")


def forget() -> None:
    """Forget rules and warnings: the facts may have changed."""
    for cached in (_warn, engine_rules, _rejected_algorithms, check_user_facts):
        cached.cache_clear()
