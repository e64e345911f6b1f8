"""cuDNN's legacy calls as a family: the candidates they have for a problem, and plans that run them.

Each direction of a convolution is a row of a table. A plan holds its descriptors, so a run is one C call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ._bindings import enums, types
from .array import DeviceArray
from .context import Context
from .descriptors import (
    MATH_NAMES,
    ConvolutionDescriptor,
    Descriptor,
    FilterDescriptor,
    TensorDescriptor,
)
from .dtypes import DTYPES
from .errors import error_from_status
from .problem import (
    LAYOUTS,
    ROLES,
    Candidate,
    ConvolutionSpec,
    ConvProblem,
    FilterSpec,
    Plan,
    TensorSpec,
    nearest_layout,
    packed_strides,
)

__all__ = ["candidates", "plan", "transform"]

Packing = tuple[tuple[str, str], ...]


class Direction(NamedTuple):
    """The C names of one direction of a convolution; operands go in the order of `problem.ROLES`."""

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


def candidates(problem: ConvProblem, context: Context) -> list[Candidate]:
    """What the legacy calls can try for a problem, in cuDNN's order; refused rows have a status.

    The operands are taken as they lie in memory. Only where cuDNN has nothing for that are some of them
    copied into another layout first, and then the rows say so.
    """
    impossible = _limits(problem)
    if impossible:
        return [Candidate("legacy", "all algorithms", "any", 0, True, status=impossible)]
    refused: list[Candidate] = []
    for packing in _packings(problem):
        rows = _ranked(_Native(problem, packing), packing, context)
        if any(not row.status for row in rows):
            return rows + refused
        refused += rows
    return refused


def plan(problem: ConvProblem, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate ready to run.

    Raises
    ------
    NotSupportedError
        cuDNN refuses the algorithm for this problem, whatever its heuristics said.
    """
    native = _Native(problem, candidate.packed, candidate.math)
    convolution = ConvolutionPlan(native, candidate, context)
    return PackedPlan(convolution, native.moves) if candidate.packed else convolution


# --- from a problem to descriptors -------------------------------------------------------------------------


class _Native:
    """The descriptors of a problem, with some operands in another layout than they have.

    ``operands`` are descriptors in the order in which the direction's C functions take them, the result last;
    ``moves`` has for each the spec that the caller's memory has, and the packed one where they differ.
    """

    def __init__(self, problem: ConvProblem, packing: Packing, math: str | None = None) -> None:
        layouts = dict(packing)
        roles = ROLES[problem.direction].operands
        specs: dict[str, TensorSpec] = {role: getattr(problem, role) for role in roles}
        targets = {
            role: TensorSpec.packed(specs[role].shape, specs[role].dtype, layout)
            for role, layout in layouts.items()
        }
        self.moves = [(specs[role], targets.get(role)) for role in roles]
        specs |= targets
        common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs.values())]
        self.operands = tuple(_descriptor(role, specs[role], common) for role in roles)
        self.direction = DIRECTIONS[problem.direction]
        self.compute = problem.compute
        spec = _convolution_spec(problem, math)
        self.math = spec.math  # "fma" is a promise, whatever the heuristics would rather have
        self.convolution = ConvolutionDescriptor.cached(spec)


def _descriptor(role: str, spec: TensorSpec, common: list[str]) -> Descriptor:
    if role == "w":
        return FilterDescriptor.cached(_filter_spec(spec, common))
    return TensorDescriptor.cached(_two_axes(_settled(spec, common)))


def _packings(problem: ConvProblem) -> list[Packing]:
    """Ways to lay the operands out that cuDNN may have an algorithm for, the fewest copies first."""
    w, image = problem.w, problem.y if problem.direction == "backward_data" else problem.x
    layout = image.layouts[0] if image.layouts else nearest_layout(image)
    ways: list[Packing] = [()] if w.layouts else []
    if layout not in w.layouts:
        ways.append((("w", layout),))
    for all_in in LAYOUTS:
        roles = [role for role in ("x", "w", "y") if all_in not in getattr(problem, role).layouts]
        ways.append(tuple((role, all_in) for role in roles))
    return list(dict.fromkeys(ways))


def _settled(spec: TensorSpec, common: list[str]) -> TensorSpec:
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


def _two_axes(spec: TensorSpec) -> TensorSpec:
    """Write one spatial axis as two, the first of length 1: the legacy calls know no other."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, step, step), spec.dtype)


def _four_axes(spec: TensorSpec) -> TensorSpec:
    """Put axes of length 1 before the first: cuDNN sets and scales nothing of fewer than four."""
    missing = max(4 - len(spec.shape), 0)
    step = max((n * s for n, s in zip(spec.shape, spec.strides, strict=True)), default=1)
    return TensorSpec((1,) * missing + spec.shape, (step,) * missing + spec.strides, spec.dtype)


def _filter_spec(w: TensorSpec, common: list[str]) -> FilterSpec:
    shape = w.shape if len(w.shape) > 3 else (*w.shape[:2], 1, w.shape[2])
    return FilterSpec(shape, w.dtype, (common or list(w.layouts) or ["nchw"])[0])


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
        math=math or ("default" if problem.tensor_cores or problem.compute == "float64" else "fma"),
    )


# --- candidates --------------------------------------------------------------------------------------------


def _ranked(native: _Native, packing: Packing, context: Context) -> list[Candidate]:
    """Ask cuDNN's heuristics, which answer with every algorithm there is, usable or not."""
    direction, (first, second, result) = native.direction, native.operands
    count, rows = ctypes.c_int(), (direction.perf * len(direction.algorithms))()
    rank = getattr(context.library, direction.rank)
    rank(context.handle, first, second, native.convolution, result, len(rows), ctypes.byref(count), rows)
    return [_candidate(row, native, packing) for row in rows[: count.value]]


def _candidate(row: Any, native: _Native, packing: Packing) -> Candidate:
    direction = native.direction
    status = "" if row.status == 0 else str(error_from_status(row.status, direction.rank))
    return Candidate(
        family="legacy",
        algorithm=direction.algorithms(row.algo).name.lower(),
        math=native.math if native.math == "fma" else MATH_NAMES.get(row.mathType, "default"),
        workspace=0 if status else row.memory,
        deterministic=row.determinism == enums.Determinism.DETERMINISTIC,
        packed=packing,
        status=status,
    )


def _limits(problem: ConvProblem) -> str:
    """What no legacy descriptor can hold of a problem, whichever the algorithm; empty for nothing."""
    if any(before != after for before, after in problem.padding):
        return "the legacy calls pad both sides of an axis alike"
    for name in ("x", "w", "y"):
        low, high = getattr(problem, name).extent
        if high - low >= 2**31:
            return f"{name} spans {high - low:,} elements; a legacy descriptor holds fewer than 2**31"
    return ""


# --- plans -------------------------------------------------------------------------------------------------


class ConvolutionPlan:
    """One legacy algorithm with its descriptors: a run is one C call."""

    __slots__ = ("_algorithm", "_call", "_native", "_scalar", "candidate", "workspace")

    def __init__(self, native: _Native, candidate: Candidate, context: Context) -> None:
        direction = native.direction
        self.candidate = candidate
        self._native = native
        self._algorithm = int(direction.algorithms[candidate.algorithm.upper()])
        self._call = getattr(context.library, direction.run)
        self._scalar = _scalar_type(native.compute)
        self.workspace = self._ask_workspace(context)

    def _ask_workspace(self, context: Context) -> int:
        size, n = ctypes.c_size_t(), self._native
        first, second, result = n.operands
        ask = getattr(context.library, n.direction.workspace)
        ask(context.handle, first, second, n.convolution, result, self._algorithm, ctypes.byref(size))
        return size.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue result = alpha * (...) + beta * result; ``pointers`` in the order of `problem.ROLES`."""
        n, workspace = self._native, context.workspace(self.workspace)
        (first, second, result), (a, b, c) = n.operands, pointers
        scalar = self._scalar
        self._call(
            context.handle,
            scalar(alpha),
            first,
            a,
            second,
            b,
            n.convolution,
            self._algorithm,
            workspace,
            self.workspace,
            scalar(beta),
            result,
            c,
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: {self.candidate}"


class PackedPlan:
    """Another plan, some of whose operands are copied into a packed layout before, or out of one after."""

    __slots__ = ("_inner", "_moves", "workspace")

    def __init__(self, inner: ConvolutionPlan, moves: list[tuple[TensorSpec, TensorSpec | None]]) -> None:
        self._inner = inner
        self._moves = moves
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Copy the inputs, run the inner plan, copy the output: the last operand is the output."""
        held = []  # the copies live until all is enqueued; their memory then goes back in stream order
        inner = list(pointers)
        for i, (spec, packed) in enumerate(self._moves):
            if packed is not None:
                nbytes = packed.size * DTYPES[packed.dtype].itemsize
                held.append(copy := DeviceArray.new(packed, nbytes, context.stream, "a packed copy"))
                inner[i] = copy.pointer
                if i < len(pointers) - 1:
                    transform(context, spec, pointers[i], packed, copy.pointer)
        spec, packed = self._moves[-1]
        self._inner.run(context, inner, alpha, 0.0 if packed else beta)
        if packed is not None:
            transform(context, packed, inner[-1], spec, pointers[-1], beta=beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return self._inner.describe()


class BiasGradientPlan:
    """The gradient of a bias per channel: the sum of dy over all other axes."""

    __slots__ = ("_db", "_dy", "_scalar", "workspace")

    def __init__(self, dy: TensorSpec) -> None:
        shape = (1, dy.shape[1], *[1] * (max(len(dy.shape), 4) - 2))
        self._dy = TensorDescriptor.cached(_two_axes(_settled(dy, [])))
        self._db = TensorDescriptor.cached(TensorSpec.packed(shape, dy.dtype))
        self._scalar = _scalar_type(DTYPES[dy.dtype].accumulate)
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue db = alpha * sum(dy) + beta * db; ``pointers`` are those of dy and db."""
        dy, db = pointers
        scalar, call = self._scalar, context.library.cudnnConvolutionBackwardBias
        call(context.handle, scalar(alpha), self._dy, dy, scalar(beta), self._db, db)

    def describe(self) -> str:
        """Tell what was chosen."""
        return "chosen: cudnnConvolutionBackwardBias"


class ScalePlan:
    """result = beta * result: what is left of a convolution whose sums have no terms."""

    __slots__ = ("_spec", "workspace")

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Set or scale the output in place."""
        if not self._spec.size:
            return
        scalar = _scalar_type(DTYPES[self._spec.dtype].accumulate)
        scalar(alpha)  # refuses what is no number
        descriptor = TensorDescriptor.cached(_four_axes(_settled(self._spec, [])))
        library = context.library
        if beta == 0:  # also where y holds NaN, which scaling by 0 keeps
            value = _element(self._spec.dtype)
            library.cudnnSetTensor(context.handle, descriptor, pointers[-1], value)
        else:
            library.cudnnScaleTensor(context.handle, descriptor, pointers[-1], scalar(beta))

    def describe(self) -> str:
        """Tell what was chosen."""
        return "chosen: nothing to sum, the output is only scaled"


def transform(
    context: Context, source: TensorSpec, read: int, target: TensorSpec, written: int, *, beta: float = 0.0
) -> None:
    """Enqueue target = source + beta * target between any two strides, by ``cudnnTransformTensor``.

    The dtype must be one that cuDNN transforms (floats and int8), the same on both sides.
    """
    scalar = _scalar_type(DTYPES[source.dtype].accumulate)
    context.library.cudnnTransformTensor(
        context.handle,
        scalar(1.0),
        TensorDescriptor.cached(_settled(source, [])),
        read,
        scalar(beta),
        TensorDescriptor.cached(_settled(target, [])),
        written,
    )


# --- scaling factors ---------------------------------------------------------------------------------------


@cache
def _scalar_type(compute: str) -> Any:
    """A function from a number to a pointer that cuDNN takes for alpha and beta: float64 only for float64."""
    kind = ctypes.c_double if compute == "float64" else ctypes.c_float
    common: dict[float, Any] = {value: ctypes.byref(kind(value)) for value in (0, 1)}

    def scalar(value: float) -> Any:
        return common.get(value) or ctypes.byref(kind(value))

    return scalar


def _element(dtype: str) -> Any:
    """A zero of a dtype, in memory."""
    return ctypes.byref((ctypes.c_char * DTYPES[dtype].itemsize)())
