"""The graph API as a backend: the engines that cuDNN has for a problem, and plans that run them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import count, islice
from math import prod
from types import MappingProxyType
from typing import Any

from ..._lib import load
from ...context import Context
from ...graph.attributes import AsDouble, AsInt32
from ...graph.candidates import engine_by_name, engine_candidates, engine_plan, no_engine
from ...graph.engines import HEURISTICS, heuristic_modes
from ...graph.offline import Planner, target_of
from ...graph.operations import Graph, Node, Tensor, node
from ...graph.plan import GraphPlan
from ...graph.rules import EngineRules, Rejection
from ...legal.conditions import applying
from ...legal.costs import faster_engines
from ...legal.rules import engine_rules
from ...legal.subjects import subjects_of
from ...plans.base import Candidate, packed_of, tensors_of
from ...shapes.conv import ROLES, ConvProblem, written_as
from ...shapes.fused import FusedConv
from ...shapes.specs import ALIGNMENT, LAYOUTS, TensorSpec, equivalent_strides, nearest_layout, packed_strides
from ...typing import Layout

__all__ = ["by_name", "candidates", "first_choice", "graph_of", "plan", "preferred"]

Packing = tuple[tuple[str, Layout], ...]
"""Copied operands by name, each with the layout of its copy, as a `Candidate` has them."""


@lru_cache(256)
def operands_of(problem: ConvProblem | FusedConv) -> Mapping[str, TensorSpec]:
    """Return the operands of a run by name, in the order of the pointers; the result is last."""
    core = problem.core
    specs: dict[str, TensorSpec | None] = {
        role: getattr(core, role) for role in ROLES[core.direction].operands
    }
    if isinstance(problem, FusedConv):
        y = specs.pop("y")
        specs |= {"z": problem.z, "b": problem.bias, "y": y}
    return MappingProxyType({name: spec for name, spec in specs.items() if spec})


def relaid_out(problem: Any, packing: Packing) -> Any:
    """Return the problem with contiguous layouts for the operands in ``packing``."""
    if not packing:
        return problem
    operands = operands_of(problem)
    copies: dict[str, Any] = {
        name: TensorSpec.packed(operands[name].shape, operands[name].dtype, layout)
        for name, layout in packing
    }
    if isinstance(problem, FusedConv):
        fields = {"z": "z", "b": "bias"}
        added = {fields[name]: copies.pop(name) for name in fields if name in copies}
        return problem._replace(conv=problem.conv._replace(**copies), **added)
    return problem._replace(**copies)


@lru_cache(256)
def for_engines(problem: ConvProblem | FusedConv) -> Packing:
    """Return the conversions of the convolution's operands that engines require."""
    # Engines do not support operands that are not contiguous. Runtime-compiled engines of fused graphs (4, 7,
    # 52 and 53 of cuDNN 9.19) give wrong sums or read misaligned addresses unless x, w and y have one layout.
    # They read a result of one pixel as NHWC, whose channels are adjacent in both layouts. int8 operands are
    # not copied, because copies within a dtype support only floating-point numbers.
    core = problem.core
    if core.x.dtype == "int8":
        return ()
    roles = ROLES[core.direction].operands
    packed = [spec for role in (roles[-1], "y", "w", "x") if (spec := getattr(core, role)).layouts]
    layout = nearest_layout(*packed, core.x)
    if isinstance(problem, FusedConv) and prod(core.y.shape[2:]) == 1:
        layout = "nhwc"
    taken = {layout} if isinstance(problem, FusedConv) else set(LAYOUTS)
    return tuple((role, layout) for role in roles if not taken.intersection(getattr(core, role).layouts))


def engine_conversions(problem: ConvProblem | FusedConv) -> tuple[Packing, ...]:
    """Return conversions for which engines may exist, the fewest copies first; JIT wheels prefer NHWC."""
    core, needed = problem.core, with_epilogue(problem, for_engines(problem))
    if core.x.dtype == "int8" or not load().lacks("cnn"):
        return (needed,)
    wide: Packing = tuple((role, "nhwc") for role in "xwy" if "nhwc" not in getattr(core, role).layouts)
    return tuple(dict.fromkeys((needed, with_epilogue(problem, wide))))


@lru_cache(256)
def layout_conversions(problem: ConvProblem | FusedConv) -> tuple[Packing, ...]:
    """Return conversions for which legacy calls may have an algorithm, the fewest copies first."""
    core = problem.core
    layout = nearest_layout(core.y if core.direction == "backward_data" else core.x)
    conversions: list[Packing] = [()] if core.w.layouts else []
    if core.x.dtype != "int8":  # every tested combination of copies gave wrong sums of int8
        conversions += [(("w", layout),)] if layout not in core.w.layouts else []
        conversions += [
            tuple([(role, every) for role in "xwy" if every not in getattr(core, role).layouts])
            for every in LAYOUTS
        ]
    return tuple(dict.fromkeys([with_epilogue(problem, one) for one in conversions]))


def with_epilogue(problem: Any, packing: Packing = ()) -> Packing:
    """Add the conversion of a non-contiguous bias, and of a residual whose layout differs from the result."""
    # Runtime-compiled engines read every tensor of the result's shape with the result's strides. A result
    # that is not contiguous has no layout to copy into; graphs and the fused call reject that problem.
    if not isinstance(problem, FusedConv):
        return packing
    relaid = relaid_out(problem, packing)
    z, bias, y = relaid.z, relaid.bias, relaid.result
    if bias is not None and not bias.layouts:
        packing = (*packing, ("b", "nchw"))
    if z is not None and y.layouts and not equivalent_strides(z.shape, z.strides, y.strides):
        packing = (*packing, ("z", y.layouts[0]))
    return packing


# --- graphs ------------------------------------------------------------------------------------------------

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
        if 1 in spec.shape and spec.layouts:  # engines are selected by the strides of axes of length 1, too
            spec = spec._replace(strides=packed_strides(spec.shape, written_as(spec, core)))
        return Tensor(next(numbers), two_axes(spec), virtual)

    tensors = {name: tensor(specs[name]) for name in ("x", "w", "y", "z", "b") if name in specs}
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
    padding, stride, dilation, mode = geometry_of(problem).values()
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
        conv_mode=mode,
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


def two_axes(spec: TensorSpec) -> TensorSpec:
    """Expand one spatial axis into two, the first of length 1: engines support two and three."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, max(length * step, 1), step), spec.dtype)


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
    # Engines are selected by the strides of axes of length 1 too.
    last = {name: spec._replace(strides=packed_strides(spec.shape, "nhwc")) for name, spec in images.items()}
    return problem._replace(**{name: two_axes(spec) for name, spec in last.items()})


def geometry_of(problem: ConvProblem) -> dict[str, Any]:
    """Return the parameters of a convolution with at least two spatial axes, as `two_axes` makes them."""
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


# --- engines -----------------------------------------------------------------------------------------------


def candidates(
    problem: ConvProblem | FusedConv,
    context: Context | Planner,
    heuristics: Collection[str] = HEURISTICS,
    most: int | None = None,
    *,
    first: bool = False,
) -> list[Candidate]:
    """Return the engines that cuDNN has for a problem, best first, then the rejected ones.

    If no engine exists, the result is one candidate with the reason. ``heuristics`` are the modes to query,
    in this order; each takes milliseconds. ``most`` limits the number of usable engines from them.
    With ``first``, engines after the first choice are not read.
    """
    if unfit := _unfit(problem):
        return [no_engine(unfit)]
    graph = graph_of(problem)
    allowed = heuristic_modes(graph, context)
    heuristics = list(dict.fromkeys([mode if mode in allowed else allowed[0] for mode in heuristics]))
    # FFT and Winograd engines need fewer products, and are faster then than cuDNN ranks them.
    plain = problem.conv if isinstance(problem, FusedConv) else None
    by_transforms = plain is not None and plain.compute == "float32" and not plain.tensor_cores
    wanted = (2 if by_transforms else 1) if first else None
    rows = engine_candidates(graph, _rules(problem, context), context, heuristics, most, wanted)
    second = rows[1] if len(rows) > 1 and not rows[1].rejected else None
    if second and by_transforms and {"fft", "winograd"} & set(second.notes):
        rows[:2] = second, rows[0]
    return rows


def preferred(problem: ConvProblem, context: Context | Planner) -> list[Candidate]:
    """Return the engines that measurements rank above cuDNN's own order for a problem, if there are any."""
    if _unfit(problem):
        return []
    (subject,) = subjects_of(problem)
    for fact in applying("first", subject, target_of(context)):
        (name,) = fact.row["order"]
        if name == "product":
            from .as_product import first_candidates  # with the products, which few convolutions need

            return first_candidates(problem, context)
        row = engine_by_name(graph_of(problem), _rules(problem, context), name, context)
        return [] if row.rejected else [row]
    return []


def first_choice(problem: ConvProblem | FusedConv, context: Context | Planner) -> list[Candidate]:
    """Return the first engines of cuDNN's heuristics, after one that should take less time than the first."""
    rows = candidates(problem, context, ("b",), first=True)
    if rows[0].rejected:
        return rows
    (subject,) = subjects_of(problem)
    for fact in islice(applying("cost", subject, target_of(context)), 1):
        for name in faster_engines(subject[1].core, fact.row["costs"], fact.row["order"], rows[0].algorithm):
            row = by_name(problem, name, context)
            if not row.rejected:
                return [row, *rows]
    return rows


def by_name(problem: ConvProblem | FusedConv, name: str, context: Context | Planner) -> Candidate:
    """Return the engine of a name as a candidate; it is rejected if the problem does not allow it."""
    if unfit := _unfit(problem):
        return no_engine(unfit, name)
    return engine_by_name(graph_of(problem), _rules(problem, context), name, context)


def plan(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context | Planner) -> GraphPlan:
    """Return a plan for a candidate, bound to the context's thread; see `graph.candidates.engine_plan`."""
    return engine_plan(graph_of(problem), _rules(problem, context), candidate, context, problem)


def _rules(problem: ConvProblem | FusedConv, context: Context | Planner) -> EngineRules:
    rules, unfit = engine_rules(problem, target_of(context)), _unfit(problem)
    return rules._replace(rejections=(Rejection(unfit),)) if unfit else rules


@lru_cache(maxsize=256)
def _unfit(problem: ConvProblem | FusedConv) -> str:
    """Return why no engine can compute a problem; empty if engines may."""
    core = problem.core
    if core.scaled == "alpha" and core.x.dtype == "float16":
        return (
            "sums in float16 may overflow before alpha makes them small (scale the result in place instead)"
        )
    if not core.aligned:
        return f"an operand is not {ALIGNMENT}-byte aligned"
    strided = [spec for spec in operands_of(problem).values() if not spec.layouts]
    return f"an operand is not contiguous: {strided[0]}" if strided else ""
