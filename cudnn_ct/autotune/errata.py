"""Implementations of cuDNN that compute wrong results, as tables of the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Errata", "Erratum"]


class Erratum(NamedTuple):
    """An engine number or legacy algorithm with wrong results, and the problems for which they are wrong.

    ``algorithm`` is None if all of them are wrong, or the number may differ between versions.
    """

    algorithm: int | str | None
    applies: Callable[[Any], bool]
    finding: str


class Errata(NamedTuple):
    """The wrong implementations of an operation, and the cuDNN and GPU that they were found on."""

    found_on: str
    rows: tuple[Erratum, ...]

    def reason(self, algorithm: int | str, problem: Any) -> str:
        """Return why the results of an implementation are wrong for a problem; empty if no error is known."""
        found = (row for row in self.rows if row.algorithm in (None, algorithm) and row.applies(problem))
        return next((row.finding for row in found), "")
