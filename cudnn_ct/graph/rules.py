"""The engines that a problem may use, and their order: plain values, which recorded graphs carry too."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ..facts import Arch, on_gpu
from .engines import Engine

ALL_GPUS: Arch = ((), ())


class Rejection(NamedTuple):
    """Engines that must not compute a problem, and why; an engine is rejected if all conditions hold."""

    reason: str
    engines: tuple[int, ...] = ()  # its number or one of its notes is listed; none: any engine
    but: tuple[int, ...] = ()  # its number is not one of these
    notes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # it has none of these notes
    knobs: tuple[tuple[int, tuple[int, ...]], ...] = ()  # each has one of these values
    slices: int = 0  # its sums have more slices (knob SPLIT_K)
    arch: Arch = ALL_GPUS
    fact: str = ""  # the name of the row of facts.json

    @property
    def of_all(self) -> bool:
        """Whether no engine may compute the problem."""
        return not (self.engines or self.but or self.notes or self.without or self.knobs or self.slices)

    def rejects(self, engine: Engine, notes: Collection[str], capability: tuple[int, int]) -> bool:
        """Return whether an engine with these notes must not be used on a GPU; (0, 0) is an unknown one."""
        knobs = dict(engine.knobs)
        named = engine.number in self.engines or any(note in notes for note in self.notes)
        return (
            (named or not (self.engines or self.notes))
            and engine.number not in self.but
            and not any(note in notes for note in self.without)
            and all(knobs.get(knob) in values for knob, values in self.knobs)
            and (not self.slices or knobs.get(_SPLIT_K, 1) > self.slices)
            and on_gpu(capability, self.arch)
        )


_SPLIT_K = 0


class Named(NamedTuple):
    """An engine with its knobs by name, for the GPUs on which it was measured."""

    engine: str
    arch: Arch = ALL_GPUS


class EngineRules(NamedTuple):
    """The engines of one problem, as an operation uses them."""

    excluded: frozenset[str] = frozenset()  # numerical notes that reject an engine
    coarser_than: str = ""  # what the problem allows; such engines are rejected
    rejections: tuple[Rejection, ...] = ()
    last: tuple[int, ...] = ()  # engines tried after the others
    first: tuple[Named, ...] = ()  # those tried before them
    unordered: bool = False  # engines add in an order that varies, though their notes do not say so

    def why_wrong(self, engine: Engine, notes: Collection[str], capability: tuple[int, int] = (0, 0)) -> str:
        """Return why an engine must not be used; empty if it may be."""
        found = (one.reason for one in self.rejections if one.rejects(engine, notes, capability))
        return next(found, "")

    def refusal(self, capability: tuple[int, int]) -> str:
        """Return why no engine may be used; empty if engines may."""
        found = (one.reason for one in self.rejections if one.of_all and on_gpu(capability, one.arch))
        return next(found, "")


def rules_to_json(rules: EngineRules) -> dict[str, Any]:
    """Return rules for a file of graphs, next to the other keys of a request."""
    found = rules._asdict() | {"excluded": sorted(rules.excluded)}
    del found["coarser_than"]  # it is a part of messages alone
    return found | {"rejections": [one._asdict() for one in rules.rejections]}


def rules_from_json(row: dict[str, Any]) -> EngineRules:
    """Return the rules in a row of a file of graphs; those that it lacks are empty."""
    return EngineRules(
        frozenset(map(str, row.get("excluded", ()))),
        rejections=tuple(map(_rejection, row.get("rejections", ()))),
        last=tuple(map(int, row.get("last", ()))),
        first=tuple(map(_named, row.get("first", ()))),
        unordered=bool(row.get("unordered", False)),
    )


def _rejection(row: dict[str, Any]) -> Rejection:
    knobs = tuple((int(knob), tuple(map(int, values))) for knob, values in row.get("knobs", ()))
    return Rejection(
        str(row["reason"]),
        engines=tuple(map(int, row.get("engines", ()))),
        but=tuple(map(int, row.get("but", ()))),
        notes=tuple(map(str, row.get("notes", ()))),
        without=tuple(map(str, row.get("without", ()))),
        knobs=knobs,
        slices=int(row.get("slices", 0)),
        arch=_arch(row.get("arch", ALL_GPUS)),
        fact=str(row.get("fact", "")),
    )


def _named(row: Any) -> Named:
    """Return an engine with its knobs; a text alone is for all GPUs."""
    return Named(row) if isinstance(row, str) else Named(str(row[0]), _arch(row[1]))


def _arch(value: Any) -> Arch:
    """Return a range of compute capabilities that was written as lists."""
    low, high = value
    return tuple(map(int, low)), tuple(map(int, high))
