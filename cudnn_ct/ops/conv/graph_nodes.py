"""The graph of a convolution, with bias, residual and activation as pointwise nodes."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any

from ...graph.attributes import AsDouble, AsInt32
from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import packed_of, tensors_of
from ...shapes.conv import ROLES, ConvProblem, written_as
from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec, packed_strides
from .relayout import operands_of

# The mode of the pointwise node, and its parameter that `coefficient` is.
MODES = {
    "identity": ("identity", ""),
    "relu": ("relu_fwd", ""),
    "clipped_relu": ("relu_fwd", "relu_upper_clip"),
    "sigmoid": ("sigmoid_fwd", ""),
    "tanh": ("tanh_fwd", ""),
    "elu": ("elu_fwd", "elu_alpha"),
    "gelu": ("gelu_fwd", ""),
    "swish": ("swish_fwd", "swish_beta"),
}


def graph_of(problem: ConvProblem | FusedConv) -> Graph:
    """Return the graph that computes a problem, with the operands in the order of a run's pointers."""
    # Factors of fused problems may be equal and differ, as 0.0 and -0.0: their graphs are not cached.
    return _plain_graph(problem) if type(problem) is ConvProblem else _graph_of(problem)


def _graph_of(problem: ConvProblem | FusedConv) -> Graph:
    core, specs, numbers = problem.core, operands_of(problem), count(1)

    def tensor(spec: TensorSpec, virtual: bool = False) -> Tensor:
        written = two_axes(_with_packed_strides(spec, core))
        return Tensor(next(numbers), written, virtual)

    tensors: dict[str, Tensor] = {
        name: tensor(specs[name]) for name in ("x", "w", "y", "z", "b") if name in specs
    }
    steps = _steps(problem, tensors) if isinstance(problem, FusedConv) else []
    between = [tensor(core.y._replace(dtype=core.compute), virtual=True) for _ in steps]
    outputs = [*between, tensors["y"]]
    nodes = [conv_node(core, **{**tensors, "y": outputs[0]})]
    for step, read, written in zip(steps, outputs, outputs[1:], strict=False):
        nodes.append(node("pointwise", math_prec=core.compute, **step, xdesc=read, ydesc=written))
    return Graph(tuple(nodes), tuple(tensors[name] for name in specs))


_plain_graph = lru_cache(256)(_graph_of)  # a first call needs the graph for each source of candidates


def conv_node(problem: ConvProblem, x: Tensor, w: Tensor, y: Tensor, **_: Tensor) -> Node:
    """Return the node of a convolution; cuDNN derives the groups from the channels of ``x`` and ``w``."""
    padding, stride, dilation = problem.padding, problem.stride, problem.dilation
    if len(stride) == 1:  # like the tensors: see `two_axes`
        padding, stride, dilation = ((0, 0), *padding), (1, *stride), (1, *dilation)
    roles = ROLES[problem.direction]
    names = dict(zip(roles.operands, roles.names, strict=True))
    # Engines reinterpret factors of another type.
    number = AsDouble if problem.compute == "float64" else AsInt32 if problem.y.dtype == "int32" else float
    return node(
        f"conv_{problem.direction}",
        **{names["x"]: x, names["w"]: w, names["y"]: y},
        alpha=number(1),
        beta=number(0),
        comp_type=problem.compute,
        conv_mode=problem.mode,
        spatial_dims=len(stride),
        pre_paddings=[before for before, _ in padding],
        post_paddings=[after for _, after in padding],
        filter_strides=stride,
        dilations=dilation,
    )


def _steps(problem: FusedConv, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return the attributes of the pointwise nodes, without their inputs and outputs."""
    steps: list[dict[str, Any]] = []
    scale: float | None = problem.alpha1 if problem.alpha1 != 1 else None  # applied in the first addition
    for name, factor in (("z", problem.alpha2), ("b", 1.0)):
        if name in tensors:
            other = factor if factor != 1 else None
            steps.append({"mode": "add", "bdesc": tensors[name], "alpha1": scale, "alpha2": other})
            scale = None
    if problem.activation != "identity" or scale is not None:
        steps.append(activation_step(problem.activation, problem.coefficient, alpha1=scale))
    return steps


def activation_step(activation: str, coefficient: float, **others: Any) -> dict[str, Any]:
    """Return the attributes of the pointwise node of an activation; the beta of swish is 1 by default."""
    mode, parameter = MODES[activation]
    if not parameter or (activation == "swish" and coefficient in (0, 1)):  # 0 stands for 1
        return {"mode": mode, **others}
    return {"mode": mode, **others, parameter: coefficient}


def _with_packed_strides(spec: TensorSpec, problem: ConvProblem) -> TensorSpec:
    """Give axes of length 1 the strides of a contiguous layout, because engines are selected by them."""
    if 1 not in spec.shape or not spec.layouts:
        return spec
    return spec._replace(strides=packed_strides(spec.shape, written_as(spec, problem)))


def two_axes(spec: TensorSpec) -> TensorSpec:
    """Expand one spatial axis into two, the first of length 1: engines support two and three."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, max(length * step, 1), step), spec.dtype)


def channels_last(spec: TensorSpec) -> TensorSpec:
    """Return a contiguous tensor with two or three spatial axes and the strides of channels last."""
    # Engines are selected by the strides of axes of length 1 too.
    return two_axes(spec._replace(strides=packed_strides(spec.shape, "nhwc")))


def as_images(problem: Any) -> Any:
    """Return the problem with the axes of its images, at least two of them spatial, and channels last.

    Tensors with fewer axes have an element for each channel.
    """
    specs = tensors_of(problem)
    rank = max(len(spec.shape) for spec in specs.values())
    ones = (1,) * (rank - 2 if rank > 1 else 2)
    images = {
        name: spec if len(spec.shape) > 2 else spec._replace(shape=(1, spec.size, *ones))
        for name, spec in specs.items()
    }
    return problem._replace(**{name: channels_last(spec) for name, spec in images.items()})


def geometry_of(problem: ConvProblem) -> dict[str, Any]:
    """Return the parameters of a convolution with at least two spatial axes, for methods of `ct.Graph`."""
    added = max(2 - len(problem.stride), 0)
    return {
        "padding": ((0, 0),) * added + problem.padding,
        "stride": (1,) * added + problem.stride,
        "dilation": (1,) * added + problem.dilation,
        "mode": problem.mode,
    }


def packed_operands(problem: Any) -> Any:
    """Return the problem with contiguous copies of operands that do not have channels last."""
    # Runtime-compiled engines give wrong sums unless x, w and y have one layout, and read a residual with the
    # strides of the result.
    return packed_of(problem, "nhwc")
