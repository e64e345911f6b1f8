"""Plans of legacy calls: what a run is, once all that depends on the problem is made."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Context
from ..descriptors import TensorDescriptor
from ..dtypes import DTYPES
from ..errors import BadParamError, NotSupportedError
from ..problem import ALIGNMENT, Candidate, Plan, TensorSpec
from .copies import copying
from .native import Native, element, four_axes, scalar_type, settled
from .scratch import behind
from .turns import too_late

__all__ = [
    "AlignedPlan",
    "ConvolutionPlan",
    "PackedPlan",
    "ScalePlan",
    "ScaledPlan",
]


class ConvolutionPlan:
    """One legacy algorithm with its descriptors: a run is one C call."""

    __slots__ = ("_algorithm", "_call", "_native", "_scalar", "candidate", "workspace")

    def __init__(self, native: Native, candidate: Candidate, context: Context) -> None:
        direction = native.direction
        self.candidate = candidate
        self._native = native
        self._algorithm = int(direction.algorithms[candidate.algorithm.upper()])
        self._call = getattr(context.library, direction.run)
        self._scalar = scalar_type(native.compute)
        self.workspace: int = native.workspace(self._algorithm, context)

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
    """Another plan, some of whose operands are copied into a packed layout before, or out of one after.

    The copies lie behind the other plan's scratch memory, so that nothing is allocated in a run. The last
    ``outputs`` operands are written; beta is of the first of them. The last ``updated`` are read as well.
    """

    __slots__ = ("_copied", "_first_output", "_inner", "_into", "_out_of", "workspace")

    def __init__(
        self,
        inner: Plan,
        moves: Sequence[tuple[TensorSpec, TensorSpec | None]],
        outputs: int = 1,
        updated: int = 0,
    ) -> None:
        self._inner = inner
        self._first_output = first = len(moves) - outputs
        self._copied = {}  # operands, and where their copies lie
        self._into = []
        self._out_of = []
        self.workspace = inner.workspace
        for place, (spec, packed) in enumerate(moves):
            if packed is None:
                continue
            self._copied[place], self.workspace = behind(self.workspace, packed)
            if place < first or place >= len(moves) - updated:
                self._into.append((place, copying(spec, packed)))
            if place >= first:
                self._out_of.append((place, copying(packed, spec)))

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Copy the inputs, run the inner plan, copy the outputs."""
        base, first = context.workspace(self.workspace), self._first_output
        inner = list(pointers)
        for place, offset in self._copied.items():
            inner[place] = base + offset
        for place, copy in self._into:
            copy.run(context, (pointers[place], inner[place]), 1.0, 0.0)
        self._inner.run(context, inner, alpha, 0.0 if first in self._copied else beta)
        try:
            for place, copy in self._out_of:
                copy.run(context, (inner[place], pointers[place]), 1.0, beta if place == first else 0.0)
        except (BadParamError, NotSupportedError) as error:
            if first == len(pointers) - 1:
                raise
            raise too_late(error) from error

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._inner.describe()}; {len(self._copied)} operands copied into a packed layout"


class ScaledPlan:
    """Another plan, which has no factors: into scratch memory, then out = alpha * scratch + beta * out.

    ``factor`` multiplies every alpha.
    """

    __slots__ = ("_copy", "_factor", "_inner", "_offset", "workspace")

    def __init__(self, inner: Plan, result: TensorSpec, factor: float = 1) -> None:
        self._inner = inner
        self._factor = factor
        scratch = TensorSpec.packed(result.shape, result.dtype, result.layouts[0])
        self._copy = copying(scratch, result)
        self._offset, self.workspace = behind(inner.workspace, scratch)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the other plan; copy what it wrote, scaled, unless there is nothing to scale."""
        alpha *= self._factor
        if alpha == 1 and beta == 0:
            self._inner.run(context, pointers, 1.0, 0.0)
            return
        *inputs, out = pointers
        scratch = context.workspace(self.workspace) + self._offset
        self._inner.run(context, [*inputs, scratch], 1.0, 0.0)
        self._copy.run(context, (scratch, out), alpha, beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._inner.describe()}; alpha and beta by a call of their own"


class AlignedPlan:
    """Another plan, for memory that begins at multiples of 16 bytes.

    Elsewhere a kernel that loads several elements at once may end the CUDA context.
    """

    __slots__ = ("_inner", "workspace")

    def __init__(self, inner: Plan) -> None:
        self._inner = inner
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the other plan. Raises NotSupportedError for memory that begins elsewhere."""
        for pointer in pointers:
            if pointer % ALIGNMENT:
                starts = ", ".join(map(hex, pointers))
                raise NotSupportedError(f"not all operands begin at multiples of {ALIGNMENT} bytes: {starts}")
        self._inner.run(context, pointers, alpha, beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return self._inner.describe()


class ScalePlan:
    """result = beta * result: what is left of a convolution whose sums have no terms."""

    __slots__ = ("_spec", "workspace")

    def __init__(self, spec: TensorSpec) -> None:
        # cudnnSetTensor has no int32, and a zero has the same bits; sums of int32 have no factors.
        self._spec = spec._replace(dtype="float32") if spec.dtype == "int32" else spec
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Set or scale the output in place."""
        if not self._spec.size:
            return
        scalar = scalar_type(DTYPES[self._spec.dtype].accumulate)
        scalar(alpha)  # refuses what is no number
        descriptor = TensorDescriptor.cached(four_axes(settled(self._spec, [])))
        library = context.library
        if beta == 0:  # also where y holds NaN, which scaling by 0 keeps
            value = element(self._spec.dtype)
            library.cudnnSetTensor(context.handle, descriptor, pointers[-1], value)
        else:
            library.cudnnScaleTensor(context.handle, descriptor, pointers[-1], scalar(beta))

    def describe(self) -> str:
        """Tell what was chosen."""
        return "chosen: nothing to sum, the output is only scaled"
