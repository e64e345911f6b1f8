"""Known defects of cuDNN versions in normalisations."""

from __future__ import annotations

from typing import NamedTuple

from ...autotune.known import KnownDefects

__all__ = ["DEFECTS", "NormNode", "loses_variance"]

LARGE_MEAN = "a mean that is large next to the deviation"


class NormNode(NamedTuple):
    """A node of a graph that normalises: the name of its operation, and the dtype of its x."""

    operation: str
    dtype: str


DEFECTS = KnownDefects(
    lambda node: node.operation,
    {
        "float32": lambda node: node.dtype == "float32",
        LARGE_MEAN: lambda node: True,  # noqa: ARG005 - only the values tell
    },
)


def loses_variance(node: NormNode, version: int) -> bool:
    """Return whether a cuDNN is known to compute the variance of a node wrong for large means."""
    return any(LARGE_MEAN in row["when"] for row in DEFECTS.rows(node, version))
