"""Engines to try before those of cuDNN's heuristics, where measurements say that the heuristics err."""

from __future__ import annotations

from ..dtypes import GRAPH_DTYPES

__all__ = ["engines_for_exact_gelu"]

FEW_TERMS, MANY_SUMS = 256, 2**23

# Not every cuDNN offers engine 4 for a described GPU, where no driver is.
FIRST = ("engine 4 knobs 24=42", "engine 7 knobs 24=22")


def engines_for_exact_gelu(dtype: str, terms: int, sums: int) -> tuple[str, ...]:
    """Return the engines to try first for a large product of matrices whose sums go through exact gelu.

    The heuristics do not count the time of the error function: for few terms, their first engine takes up to
    1.9 times as long on an H200 with cuDNN 9.19.
    """
    if GRAPH_DTYPES[dtype].itemsize != 2 or terms > FEW_TERMS or sums < MANY_SUMS:
        return ()
    return FIRST if terms > 64 else FIRST[1:]
