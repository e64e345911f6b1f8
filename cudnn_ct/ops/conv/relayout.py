"""Layout conversion of convolution operands, and the problem on the converted copies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

from ..._lib import load
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import LAYOUTS, TensorSpec, equivalent_strides, nearest_layout
from ...typing import Layout

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
