"""Graphs that cuDNN has engines for, by name: how each kind is put together.

Shapes are small and suit the recorded H200. The operands of a graph are its inputs, then its results.
"""

from __future__ import annotations

from collections.abc import Callable

from cudnn_ct.graph.operations import Graph

from .attention import ATTENTION
from .composed_attention import COMPOSED
from .convolutions import CONVOLUTIONS
from .float8_attention import FLOAT8
from .matmuls import MATMULS
from .norms import NORMS
from .unsupported import UNSUPPORTED

__all__ = ["KINDS", "SINCE", "UNSUPPORTED"]

KINDS: dict[str, Callable[[], Graph]] = {
    **ATTENTION,
    **COMPOSED,
    **FLOAT8,
    **NORMS,
    **MATMULS,
    **CONVOLUTIONS,
}

# The first tested version with engines for a kind; others had them in the first that plans without a GPU.
# cuDNN 9.10.2 ends the process that plans "matmul int4 weights of blocks".
SINCE: dict[str, int] = {
    **dict.fromkeys(("matmul int4 weights of blocks", "matmul int8 weights of blocks"), 91900),
    **dict.fromkeys(("grouped matmul", "grouped matmul gather"), 91900),
    **dict.fromkeys((name for name in KINDS if name.startswith("sdpa")), 91500),
    **dict.fromkeys((name for name in KINDS if name.startswith("sdpa backward")), 92800),
    **dict.fromkeys(FLOAT8, 91400),
    **dict.fromkeys(
        (f"sdpa {name}" for name in ("causal", "causal bottom right", "sliding window", "bias", "dropout")),
        92100,
    ),
}
