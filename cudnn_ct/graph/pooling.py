"""A pooling, or the gradient of one, as a graph: what pads the two sides of an axis differently."""

from __future__ import annotations

from ..errors import NotSupportedError
from ..legacy import images
from ..problem import PoolProblem, tensors_of
from .operations import Graph, Tensor, node

__all__ = ["pool_graph"]

_MODES = {
    "max": "maxpool",
    "max_deterministic": "maxpool",
    "average_inc_pad": "avgpool",
    "average_exc_pad": "avgpool_exclude_padding",
    "sum": "avgpool",  # times the size of the window
}


def pool_graph(problem: PoolProblem) -> Graph:
    """Make the graph of a pooling; its operands are the tensors of the problem in their order.

    Raises
    ------
    NotSupportedError
        A tensor has gaps.
    """
    specs = tensors_of(problem)
    gaps = [spec for spec in specs.values() if not spec.layouts]
    if gaps:
        raise NotSupportedError(f"engines take no operand with gaps: {gaps[0]}")
    tensors = [Tensor(uid, spec) for uid, spec in enumerate(images(*specs.values()), 1)]
    names = dict(zip((f"{name}desc" for name in specs), tensors, strict=True))
    window, padding, stride = problem.geometry
    if len(window) == 1:
        window, padding, stride = (1, *window), ((0, 0), *padding), (1, *stride)
    pool = node(
        "resample_backward" if problem.dx else "resample_forward",
        **names,
        alpha=1.0,
        beta=0.0,
        mode=_MODES[problem.mode],
        comp_type="float64" if problem.x.dtype == "float64" else "float32",
        spatial_dims=len(window),
        window_dims=window,
        pre_paddings=[before for before, _ in padding],
        post_paddings=[after for _, after in padding],
        strides=stride,
        nan_propagation="propagate_nan" if problem.propagate_nan else "not_propagate_nan",
        padding_mode="neg_inf_pad" if problem.mode.startswith("max") else "zero_pad",
    )
    return Graph((pool,), tuple(tensors))
