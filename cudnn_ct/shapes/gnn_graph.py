"""Directed graphs of nodes and edges in compressed sparse columns: checks of their arrays."""

from __future__ import annotations

from typing import NamedTuple

from .specs import TensorSpec

FEATURES = ("float16", "bfloat16", "float32")  # dtypes of features
INDICES = ("int32", "int64")  # dtypes of offsets and indices


class GraphSizes(NamedTuple):
    """The numbers of destinations and edges of a graph, and the dtype of its indices."""

    destinations: int
    edges: int
    dtype: str


def graph_sizes(offsets: TensorSpec, indices: TensorSpec, order: TensorSpec | None = None) -> GraphSizes:
    """Return the sizes of a graph, after a check of the specs of its arrays.

    >>> offsets, indices = TensorSpec.packed((4,), "int32"), TensorSpec.packed((7,), "int32")
    >>> graph_sizes(offsets, indices)
    GraphSizes(destinations=3, edges=7, dtype='int32')
    """
    given = {"offsets": offsets, "indices": indices} | ({} if order is None else {"order": order})
    for name, spec in given.items():
        if spec.dtype not in INDICES:
            raise TypeError(f"{name} has a wrong dtype: got {spec.dtype}, expected int32 or int64")
        if spec.dtype != offsets.dtype:
            raise TypeError(f"offsets is {offsets.dtype} and {name} is {spec.dtype}; a graph needs one dtype")
        if len(spec.shape) != 1:
            raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected one axis")
        if not spec.is_dense:
            raise ValueError(f"{name} is not contiguous: got the strides {spec.strides}; pass a copy")
    if not offsets.size:
        raise ValueError("offsets has a wrong shape: got (0,), expected (destinations + 1,)")
    if order is not None and order.shape != indices.shape:
        raise ValueError(f"order has a wrong shape: got {order.shape}, expected {indices.shape}, as indices")
    return GraphSizes(offsets.shape[0] - 1, indices.shape[0], offsets.dtype)


def check_rows(name: str, spec: TensorSpec, rows: int | None, columns: int | None = None) -> int:
    """Check the shape of features, one row for each node or edge, and return the number of columns."""
    wanted = ("nodes" if rows is None else rows, "features" if columns is None else columns)
    wrong = len(spec.shape) != 2 or any(
        want not in (None, got) for got, want in zip(spec.shape, (rows, columns), strict=True)
    )
    if wrong or not spec.shape[1]:
        expected = ", ".join(map(str, wanted))
        raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected ({expected})")
    return spec.shape[1]
