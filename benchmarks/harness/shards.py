"""The rows of a workload in an order that is always the same, cut into parts of about equal work."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Keyed(Protocol):
    """A row: something whose id is the same in every process."""

    @property
    def id(self) -> str: ...


KeyedT = TypeVar("KeyedT", bound=Keyed)


def select(rows: Iterable[KeyedT], *, every: int = 1, shard: tuple[int, int] = (1, 1)) -> list[KeyedT]:
    """Select rows, in an order that is always the same and mixes what was listed side by side.

    ``every`` keeps each n-th of them, ``shard`` is (k, n): the k-th of n parts, k from 1. Parts are disjoint
    and of about equal work, and so is whatever a part got done before it was stopped.
    """
    found = sorted(rows, key=lambda row: (digest(row.id), row.id))
    part, parts = shard
    return found[::every][part - 1 :: parts]


def digest(text: str) -> int:
    """A large number that only the text decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def positive(text: str) -> int:
    """Read a whole number of at least 1 from a command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def shard_of(text: str) -> tuple[int, int]:
    """Read K/N from a command line."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; 2/8 is the second of eight")
    return int(part), int(parts)
