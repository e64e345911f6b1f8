"""Descriptors and C function names for convolutions by cuDNN's legacy calls.

Each direction of a convolution is a row of a table.
"""

from __future__ import annotations

import ctypes
from operator import itemgetter
from typing import Any, NamedTuple

from ..._bindings import enums, types
from ...descriptors import ConvolutionDescriptor, Descriptor, FilterDescriptor, TensorDescriptor
from ...errors import NotSupportedError
from ...plans.axes import canonical_strides, pad_to_two_axes
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import LAYOUTS, ConvolutionSpec, FilterSpec, TensorSpec, nearest_layout
from .relayout import Packing, with_epilogue

__all__ = ["DIRECTIONS", "ConvDescriptors", "layout_conversions", "requires_ieee"]

_EXACT = ("float64", "int32")  # in these, tensor cores are as precise as other units


class Direction(NamedTuple):
    """C names of one direction of a convolution; ``operands`` are roles in the order of its C functions."""

    name: str
    operands: tuple[str, str, str]
    algorithms: Any
    perf: Any

    @property
    def rank(self) -> str:
        """The function that ranks algorithms."""
        return f"cudnnGetConvolution{self.name}Algorithm_v7"

    @property
    def run(self) -> str:
        """The function that computes."""
        return f"cudnnConvolution{self.name}"


DIRECTIONS = {
    "forward": Direction(
        "Forward", ("x", "w", "y"), enums.ConvolutionFwdAlgo, types.cudnnConvolutionFwdAlgoPerf_t
    ),
    "backward_data": Direction(
        "BackwardData", ("w", "y", "x"), enums.ConvolutionBwdDataAlgo, types.cudnnConvolutionBwdDataAlgoPerf_t
    ),
    "backward_filter": Direction(
        "BackwardFilter",
        ("x", "y", "w"),
        enums.ConvolutionBwdFilterAlgo,
        types.cudnnConvolutionBwdFilterAlgoPerf_t,
    ),
}


class ConvDescriptors:
    """Native descriptors of a problem.

    ``operands`` are descriptors in the order in which the direction's C functions take them, the result last.
    ``in_c_order`` brings the pointers of a run into that order.
    """

    def __init__(self, problem: ConvProblem, math: str | None = None) -> None:
        self.direction = DIRECTIONS[problem.direction]
        specs = {role: getattr(problem, role) for role in self.direction.operands}
        common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs.values())]
        self.operands = tuple(_descriptor(role, spec, common) for role, spec in specs.items())
        self.in_c_order = itemgetter(*map(ROLES[problem.direction].operands.index, specs))
        self.compute = problem.compute
        spec = _convolution_spec(problem, math)
        self.math = spec.math  # "fma" guarantees IEEE products, whatever math type the heuristics prefer
        self.convolution = ConvolutionDescriptor.cached(spec)

    def workspace(self, algorithm: int, context: Any) -> int:
        """Return the workspace size of an algorithm; raise NotSupportedError if it is not supported."""
        size, (first, second, result) = ctypes.c_size_t(), self.operands
        query = getattr(context.library, f"cudnnGetConvolution{self.direction.name}WorkspaceSize")
        query(context.handle, first, second, self.convolution, result, algorithm, ctypes.byref(size))
        return size.value


def _descriptor(role: str, spec: TensorSpec, common: list[str]) -> Descriptor[Any]:
    if role == "w":
        return FilterDescriptor.cached(_filter_spec(spec, common))
    return TensorDescriptor.cached(pad_to_two_axes(canonical_strides(spec, common)))


def layout_conversions(problem: ConvProblem | FusedConv) -> list[Packing]:
    """Return layout conversions for which cuDNN may have an algorithm, the fewest copies first.

    int8 operands are never relaid out: every tested combination gave wrong sums.
    """
    if isinstance(problem, FusedConv):
        return list(dict.fromkeys(with_epilogue(problem, one) for one in layout_conversions(problem.conv)))
    w, image = problem.w, problem.y if problem.direction == "backward_data" else problem.x
    layout = nearest_layout(image)
    conversions: list[Packing] = [()] if w.layouts else []
    if problem.x.dtype == "int8":
        return conversions
    if layout not in w.layouts:
        conversions.append((("w", layout),))
    for all_in in LAYOUTS:
        roles = [role for role in ("x", "w", "y") if all_in not in getattr(problem, role).layouts]
        conversions.append(tuple((role, all_in) for role in roles))
    return list(dict.fromkeys(conversions))


def _filter_spec(w: TensorSpec, common: list[str]) -> FilterSpec:
    shape = w.shape if len(w.shape) > 3 else (*w.shape[:2], 1, w.shape[2])
    layouts = common or w.layouts
    if not layouts:  # the descriptor has no strides, so any layout would describe other memory
        raise NotSupportedError(f"w is not packed: got strides {w.strides}, expected NCHW or NHWC")
    return FilterSpec(shape, w.dtype, layouts[0])


def _convolution_spec(problem: ConvProblem, math: str | None) -> ConvolutionSpec:
    padding, stride, dilation = [before for before, _ in problem.padding], problem.stride, problem.dilation
    one = len(stride) == 1
    return ConvolutionSpec(
        padding=(0, *padding) if one else tuple(padding),
        stride=(1, *stride) if one else stride,
        dilation=(1, *dilation) if one else dilation,
        groups=problem.groups,
        mode=problem.mode,
        compute=problem.compute,
        math=math or ("fma" if requires_ieee(problem) else "default"),
    )


def requires_ieee(problem: ConvProblem) -> bool:
    """Whether products must keep the compute precision, which excludes rounding by tensor cores."""
    return not problem.tensor_cores and problem.compute not in _EXACT
