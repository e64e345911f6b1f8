"""Descriptors and C function names for convolutions by cuDNN's legacy calls."""

from __future__ import annotations

import ctypes
from operator import itemgetter
from typing import Any, NamedTuple

from ..._bindings import enums, types
from ...descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from ...errors import NotSupportedError
from ...plans.axes import images
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.specs import ConvolutionSpec, FilterSpec


class Direction(NamedTuple):
    """C names of one direction of a convolution; ``operands`` are roles in the order of its C functions."""

    name: str
    operands: tuple[str, str, str]
    algorithms: Any
    perf: Any


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
        x, w, y = images(problem.x, problem.w, problem.y)
        layouts = problem.common_layouts or problem.w.layouts
        if not layouts:  # the descriptor has no strides, so any layout would describe other memory
            raise NotSupportedError(
                f"w is not packed: got strides {problem.w.strides}, expected NCHW or NHWC"
            )
        native = {
            "x": TensorDescriptor.cached(x),
            "w": FilterDescriptor.cached(FilterSpec(w.shape, w.dtype, layouts[0])),
            "y": TensorDescriptor.cached(y),
        }
        self.operands = itemgetter(*self.direction.operands)(native)
        self.in_c_order = itemgetter(*map(ROLES[problem.direction].operands.index, self.direction.operands))
        self.compute = problem.compute
        # "fma" guarantees IEEE products, whatever math type the heuristics prefer.
        self.math = math or ("fma" if requires_ieee(problem) else "default")
        missing = max(2 - len(problem.stride), 0)  # cuDNN needs two axes
        self.convolution = ConvolutionDescriptor.cached(
            ConvolutionSpec(
                padding=(0,) * missing + tuple(map(itemgetter(0), problem.padding)),
                stride=(1,) * missing + problem.stride,
                dilation=(1,) * missing + problem.dilation,
                groups=problem.groups,
                mode=problem.mode,
                compute=problem.compute,
                math=self.math,
            )
        )

    def workspace(self, algorithm: int, context: Any) -> int:
        """Return the workspace size of an algorithm; raise NotSupportedError if it is not supported."""
        size, (first, second, result) = ctypes.c_size_t(), self.operands
        query = getattr(context.library, f"cudnnGetConvolution{self.direction.name}WorkspaceSize")
        query(context.handle, first, second, self.convolution, result, algorithm, ctypes.byref(size))
        return size.value


def requires_ieee(problem: ConvProblem) -> bool:
    """Return whether products must keep the compute precision, which tensor cores round in float32."""
    return not problem.tensor_cores and problem.compute not in ("float64", "int32")
