"""Selection of rows in a reproducible order, and in parts of about equal work."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Keyed(Protocol):
    """Row with an id that is the same in every process."""

    @property
    def id(self) -> str: ...


KeyedT = TypeVar("KeyedT", bound=Keyed)


def select(rows: Iterable[KeyedT], *, every: int = 1, shard: tuple[int, int] = (1, 1)) -> list[KeyedT]:
    """Return selected rows in a reproducible order, which separates adjacent rows.

    ``every`` keeps each n-th row. ``shard`` is (k, n): the k-th of n parts, k from 1. Parts are disjoint and
    have about equal work. A part that was stopped has measured rows of all kinds.
    """
    found = sorted(rows, key=lambda row: (digest(row.id), row.id))
    part, parts = shard
    return found[::every][part - 1 :: parts]


def digest(text: str) -> int:
    """Return a 64-bit hash of the text, which is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def positive(text: str) -> int:
    """Parse an integer of at least 1 from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text}")
    return number


def shard_of(text: str) -> tuple[int, int]:
    """Parse K/N from the command line."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shard; 2/8 is the second of eight")
    return int(part), int(parts)
