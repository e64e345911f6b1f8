"""From a convolution as a value to the descriptors and names that cuDNN's legacy calls take.

Each direction of a convolution is a row of a table.
"""

from __future__ import annotations

import ctypes
from functools import cache
from math import copysign, isnan
from typing import Any, NamedTuple

from .._bindings import enums, types
from ..descriptors.base import Descriptor
from ..descriptors.conv import ConvolutionDescriptor
from ..descriptors.tensors import FilterDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..problem.conv import ROLES, ConvProblem
from ..problem.fused import FusedConv
from ..problem.relayout import Packing, with_epilogue
from ..problem.specs import LAYOUTS, ConvolutionSpec, FilterSpec, TensorSpec, nearest_layout, packed_strides

__all__ = [
    "DIRECTIONS",
    "Native",
    "element",
    "exactly",
    "four_axes",
    "packings",
    "scalar_type",
    "settled",
    "two_axes",
]

_EXACT = ("float64", "int32")  # tensor cores compute in these as precisely as anything else does


class Direction(NamedTuple):
    """The C names of one direction of a convolution; operands go in the order of `problem.conv.ROLES`."""

    algorithms: Any
    perf: Any
    rank: str
    workspace: str
    run: str


DIRECTIONS = {
    "forward": Direction(
        enums.ConvolutionFwdAlgo,
        types.cudnnConvolutionFwdAlgoPerf_t,
        "cudnnGetConvolutionForwardAlgorithm_v7",
        "cudnnGetConvolutionForwardWorkspaceSize",
        "cudnnConvolutionForward",
    ),
    "backward_data": Direction(
        enums.ConvolutionBwdDataAlgo,
        types.cudnnConvolutionBwdDataAlgoPerf_t,
        "cudnnGetConvolutionBackwardDataAlgorithm_v7",
        "cudnnGetConvolutionBackwardDataWorkspaceSize",
        "cudnnConvolutionBackwardData",
    ),
    "backward_filter": Direction(
        enums.ConvolutionBwdFilterAlgo,
        types.cudnnConvolutionBwdFilterAlgoPerf_t,
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        "cudnnGetConvolutionBackwardFilterWorkspaceSize",
        "cudnnConvolutionBackwardFilter",
    ),
}


class Native:
    """The descriptors of a problem.

    ``operands`` are descriptors in the order in which the direction's C functions take them, the result last.
    """

    def __init__(self, problem: ConvProblem, math: str | None = None) -> None:
        specs = {role: getattr(problem, role) for role in ROLES[problem.direction].operands}
        common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs.values())]
        self.operands = tuple(_descriptor(role, spec, common) for role, spec in specs.items())
        self.direction = DIRECTIONS[problem.direction]
        self.compute = problem.compute
        spec = _convolution_spec(problem, math)
        self.math = spec.math  # "fma" is a promise, whatever the heuristics would rather have
        self.convolution = ConvolutionDescriptor.cached(spec)

    def workspace(self, algorithm: int, context: Any) -> int:
        """Bytes of scratch memory that an algorithm needs. Raises NotSupportedError where it cannot do it."""
        size, (first, second, result) = ctypes.c_size_t(), self.operands
        ask = getattr(context.library, self.direction.workspace)
        ask(context.handle, first, second, self.convolution, result, algorithm, ctypes.byref(size))
        return size.value


def _descriptor(role: str, spec: TensorSpec, common: list[str]) -> Descriptor:
    if role == "w":
        return FilterDescriptor.cached(_filter_spec(spec, common))
    return TensorDescriptor.cached(two_axes(settled(spec, common)))


def packings(problem: ConvProblem | FusedConv) -> list[Packing]:
    """Ways to lay the operands out that cuDNN may have an algorithm for, the fewest copies first.

    Of int8 only as they lie, if a descriptor can say how: no sums of such copies were seen to be right.
    """
    if isinstance(problem, FusedConv):
        return list(dict.fromkeys(with_epilogue(problem, one) for one in packings(problem.conv)))
    w, image = problem.w, problem.y if problem.direction == "backward_data" else problem.x
    layout = nearest_layout(image)
    ways: list[Packing] = [()] if w.layouts else []
    if problem.x.dtype == "int8":
        return ways
    if layout not in w.layouts:
        ways.append((("w", layout),))
    for all_in in LAYOUTS:
        roles = [role for role in ("x", "w", "y") if all_in not in getattr(problem, role).layouts]
        ways.append(tuple((role, all_in) for role in roles))
    return list(dict.fromkeys(ways))


def settled(spec: TensorSpec, common: list[str]) -> TensorSpec:
    """Give axes of length 1 the strides of the layout in use; cuDNN refuses odd ones."""
    if 1 not in spec.shape:
        return spec
    layouts = [layout for layout in common if layout in spec.layouts] or list(spec.layouts)
    if layouts:
        return spec._replace(strides=packed_strides(spec.shape, layouts[0]))
    strides = list(spec.strides)
    for axis in range(len(strides) - 1, -1, -1):
        if spec.shape[axis] == 1:
            last = axis == len(strides) - 1
            strides[axis] = 1 if last else strides[axis + 1] * spec.shape[axis + 1]
    return spec._replace(strides=tuple(strides))


def two_axes(spec: TensorSpec) -> TensorSpec:
    """Write one spatial axis as two, the first of length 1: the legacy calls know no other."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, step, step), spec.dtype)


def four_axes(spec: TensorSpec) -> TensorSpec:
    """Put axes of length 1 before the first: cuDNN sets and scales nothing of fewer than four."""
    missing = max(4 - len(spec.shape), 0)
    step = max((n * s for n, s in zip(spec.shape, spec.strides, strict=True)), default=1)
    return TensorSpec((1,) * missing + spec.shape, (step,) * missing + spec.strides, spec.dtype)


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
        math=math or ("fma" if exactly(problem) else "default"),
    )


def exactly(problem: ConvProblem) -> bool:
    """Whether products must not be rounded to less than a problem computes in, as tensor cores would."""
    return not problem.tensor_cores and problem.compute not in _EXACT


@cache
def scalar_type(compute: str) -> Any:
    """A function from a number to a pointer that cuDNN takes for alpha and beta: float64 only for float64."""
    kind = ctypes.c_double if compute == "float64" else ctypes.c_float
    common: dict[float, Any] = {value: ctypes.byref(kind(value)) for value in (0, 1)}

    def scalar(value: float) -> Any:
        return common.get(value) or ctypes.byref(kind(value))

    return scalar


def element(dtype: str, value: float = 0.0) -> Any:
    """A number in memory, as ``cudnnSetTensor`` takes it for elements of a dtype.

    For half types that is a float32, whatever the manual says: cuDNN 9.19 reads four bytes, and rounds.
    """
    row = DTYPES[dtype]
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    import numpy as np

    with np.errstate(all="ignore"):
        half = dtype in ("float16", "bfloat16")
        held = _to_odd(value) if half else np.asarray(value).astype(row.numpy)
    return ctypes.byref(ctypes.create_string_buffer(held.tobytes(), held.nbytes))


def _to_odd(value: float) -> Any:
    """A float32 whose last bit tells that something was lost: it becomes the half that is nearest."""
    import numpy as np

    single = np.array(value).astype(np.float32)
    nearest = float(single)
    if nearest != value and not isnan(value):
        bits = single.view(np.uint32)
        bits -= np.uint32(abs(nearest) > abs(value))
        bits |= np.uint32(1)
    return single
