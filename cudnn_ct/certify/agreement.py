"""When two implementations of a graph agree: tolerances, and nodes that magnify roundings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dtypes import GRAPH_DTYPES
from ..graph.operations import Graph
from ..plans.comparison import TOLERANCE, difference
from ..shapes.specs import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Pointwise modes that are not continuous, or have poles: a rounding of an operand may change a few results by
# any amount.
ROUGH = frozenset(
    {
        "ceil",
        "floor",
        "round",
        "mod",
        "div",
        "reciprocal",
        "rsqrt",
        "log",
        "tan",
        "exp",
        "pow",
        "binary_select",
    }
    | {"relu_bwd", "gen_index", "logical_and", "logical_or", "logical_not", "atan2"}
)
PREFIX_OF_COMPARISONS = "cmp_"
FEW, SHARE = 2, 0.02  # elements, and part of the elements of a result, that rough nodes may change


def difference_of_graphs(
    graph: Graph,
    specs: Sequence[TensorSpec],
    ours: Sequence[Bytes],
    others: Sequence[Bytes],
    tolerance: float,
) -> str:
    """Return how two results of a graph differ; empty if they agree.

    Elements agree within ``tolerance``, relative to the largest magnitude, and NaN and infinity by their
    class and place. Behind a rough node, a small share of the elements may differ.
    """
    wrong = difference(specs, ours, others, tolerance)
    if not wrong or not _is_rough(graph):
        return wrong
    few = all(_few(spec, a, b, tolerance) for spec, a, b in zip(specs, ours, others, strict=True))
    return "" if few else wrong


def _is_rough(graph: Graph) -> bool:
    modes = [str(node.attributes.get("mode", "")) for node in graph.nodes]
    indexed = any("idxdesc" in node.attributes for node in graph.nodes)
    return indexed or any(mode in ROUGH or mode.startswith(PREFIX_OF_COMPARISONS) for mode in modes)


def _few(spec: TensorSpec, ours: Bytes, others: Bytes, tolerance: float) -> bool:
    """Return whether no more elements differ than a rough node may change."""
    import numpy as np

    if spec.dtype not in TOLERANCE:
        same = ours == others
    else:
        with np.errstate(all="ignore"):
            x, y = (one.view(GRAPH_DTYPES[spec.dtype].numpy).astype(np.float64) for one in (ours, others))
            scale = np.max(np.abs(y[np.isfinite(y)]), initial=0)
            same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * scale)
    return bool(np.sum(~same) <= max(FEW, SHARE * same.size))
