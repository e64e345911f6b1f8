"""cuDNN's legacy calls as a family: the candidates they have for a problem, and plans that run them.

Each direction of a convolution is a row of a table. A plan holds its descriptors, so a run is one C call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from ._bindings import enums, types
from .array import DeviceArray
from .context import Context
from .descriptors import MATH_NAMES, ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from .dtypes import DTYPES
from .errors import error_from_status
from .problem import (
    LAYOUTS,
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
    """The C names of one direction of a convolution."""

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
    return PackedPlan(convolution, native.packed) if candidate.packed else convolution


# --- from a problem to descriptors -------------------------------------------------------------------------


class _Native:
    """The descriptors of a problem, with some operands in another layout than they have."""

    def __init__(self, problem: ConvProblem, packing: Packing, math: str | None = None) -> None:
        layouts = dict(packing)
        specs = {name: getattr(problem, name) for name in ("x", "w", "y")}
        self.packed = [
            (spec, TensorSpec.packed(spec.shape, spec.dtype, layouts[name]) if name in layouts else None)
            for name, spec in specs.items()
        ]
        x, w, y = (target or spec for spec, target in self.packed)
        common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in (x, w, y))]
        self.direction = DIRECTIONS[problem.direction]
        self.compute = problem.compute
        self.x = TensorDescriptor.cached(_two_axes(_settled(x, common)))
        self.y = TensorDescriptor.cached(_two_axes(_settled(y, common)))
        self.w = FilterDescriptor.cached(_filter_spec(w, common))
        self.convolution = ConvolutionDescriptor.cached(_convolution_spec(problem, math))


def _packings(problem: ConvProblem) -> Iterator[Packing]:
    """Ways to lay the operands out that cuDNN may have an algorithm for, the fewest copies first."""
    x, w = problem.x, problem.w
    if w.layouts:
        yield ()
    layout = x.layouts[0] if x.layouts else nearest_layout(x)
    if layout not in w.layouts:
        yield (("w", layout),)
    yield tuple((name, "nchw") for name in ("x", "w", "y") if "nchw" not in getattr(problem, name).layouts)


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
    return TensorSpec((n, c, 1, length), (step_n, step_c, max(length * step, 1), step), spec.dtype)


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
    direction = native.direction
    count, rows = ctypes.c_int(), (direction.perf * len(direction.algorithms))()
    getattr(context.library, direction.rank)(
        context.handle, native.x, native.w, native.convolution, native.y, len(rows), ctypes.byref(count), rows
    )
    return [_candidate(row, direction, packing) for row in rows[: count.value]]


def _candidate(row: Any, direction: Direction, packing: Packing) -> Candidate:
    status = "" if row.status == 0 else str(error_from_status(row.status, direction.rank))
    return Candidate(
        family="legacy",
        algorithm=direction.algorithms(row.algo).name.lower(),
        math=MATH_NAMES.get(row.mathType, "default"),
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
        ask = getattr(context.library, n.direction.workspace)
        ask(context.handle, n.x, n.w, n.convolution, n.y, self._algorithm, ctypes.byref(size))
        return size.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue y = alpha * conv(x, w) + beta * y; ``pointers`` are those of x, w and y."""
        n, (x, w, y), workspace = self._native, pointers, context.workspace(self.workspace)
        scalar = self._scalar
        self._call(
            context.handle,
            scalar(alpha),
            n.x,
            x,
            n.w,
            w,
            n.convolution,
            self._algorithm,
            workspace,
            self.workspace,
            scalar(beta),
            n.y,
            y,
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
                held.append(copy := DeviceArray.new(packed, context.stream, "a packed copy"))
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


class ScalePlan:
    """y = beta * y: what is left of a convolution whose sums have no terms."""

    __slots__ = ("_spec", "workspace")

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Set or scale the output in place."""
        if not self._spec.size:
            return
        scalar = _scalar_type(DTYPES[self._spec.dtype].accumulate)
        descriptor = TensorDescriptor.cached(_settled(self._spec, []))
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
