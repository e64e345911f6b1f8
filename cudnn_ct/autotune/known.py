"""Known defects of cuDNN versions, applied to the problems of an operation.

The versions are in ``_bad_combinations.json``: no operation compares version numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from .._bad_combinations import defects
from ..errors import format_version, warn_caller

__all__ = ["KnownDefects", "forget"]

# A slow or rejected call is visible without a warning.
WARNED = ("wrong", "crash", "hang", "nondeterministic", "unstated")

# Effects for which a problem without another way is refused.
REFUSED = ("wrong", "crash", "hang", "unsupported")

Row = Mapping[str, Any]


class KnownDefects(NamedTuple):
    """The known defects of an operation.

    ``operation_of`` returns the name of a problem's operation in the table, and ``conditions`` maps
    each text in the ``when`` fields of these operations to a predicate of a problem.
    """

    operation_of: Callable[[Any], str]
    conditions: Mapping[str, Callable[[Any], bool]]

    def rows(self, problem: Any, version: int, capability: tuple[int, int] | None = None) -> list[Row]:
        """Return the defects that apply to a problem; without a capability, those of all GPUs."""
        known = _known(self.operation_of(problem), version, capability)
        return [row for row in known if all(self.conditions[text](problem) for text in row["when"])]

    def wrong_engine(
        self, engine: int, problem: Any, version: int, capability: tuple[int, int] | None
    ) -> str:
        """Return why an engine must not compute a problem; empty if no defect of this engine is known."""
        rows = self.rows(problem, version, capability)
        found = (row for row in rows if engine in row.get("engines", ()))
        return next((f"{row['message']} ({row['source']})" for row in found), "")

    def refusal(self, problem: Any, version: int, capability: tuple[int, int] | None) -> str:
        """Return why no engine must compute a problem; empty if no such defect is known."""
        rows = self.rows(problem, version, capability)
        found = (row for row in rows if row["effect"] in REFUSED and "engines" not in row)
        return next((f"{row['message']}; {row['advice']} ({row['source']})" for row in found), "")

    def warn(self, problem: Any, version: int, capability: tuple[int, int]) -> None:
        """Warn once of each defect that may affect a problem and that no choice of an engine avoids."""
        for row in self.rows(problem, version, capability):
            if row["effect"] in WARNED and "engines" not in row:
                _warn(version, row["message"], row["advice"], row["source"])


def forget() -> None:
    """Forget the warnings: each appears again."""
    _warn.cache_clear()


@lru_cache(maxsize=256)
def _known(operation: str, version: int, capability: tuple[int, int] | None) -> list[dict[str, Any]]:
    arch = "{}.{}".format(*capability) if capability else ""
    return defects(format_version(version), operation, arch)


@lru_cache(maxsize=256)
def _warn(version: int, message: str, advice: str, source: str) -> None:
    warn_caller(f"cuDNN {format_version(version)} has a known defect: {message}; {advice} ({source})")
