"""The gradient of batch normalisation by the legacy calls, and what is left of a batch of nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .._bindings.enums import BatchNormMode, BatchNormOps
from ..context import Context
from ..descriptors import TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..problem import NormGradient, NormTraining
from .native import scalar_type
from .norm import activation, told
from .norm_forms import Specs, pointwise

__all__ = ["EmptyPlan", "GradientPlan"]


class GradientPlan:
    """``cudnnBatchNormalizationBackward``, or with ``extended`` the call that may take scratch memory.

    Before it, ``cudnnActivationBackward`` finds what the activation let through: dz.
    """

    __slots__ = (
        "_data",
        "_epsilon",
        "_extended",
        "_mode",
        "_names",
        "_parameters",
        "_pointwise",
        "_relu",
        "_scalar",
        "workspace",
    )

    def __init__(
        self, problem: NormGradient, context: Context, specs: Specs, mode: BatchNormMode, extended: bool
    ) -> None:
        self._mode, self._epsilon, self._extended = mode, ctypes.c_double(problem.epsilon), extended
        self._relu = activation(problem.activation)
        names = ("x", "dz" if self._relu else "dy", "dx")
        self._data = [TensorDescriptor.cached(specs[name]) for name in names]
        self._pointwise = pointwise(*(specs[name] for name in ("y", "dy", "dz"))) if self._relu else []
        self._parameters = TensorDescriptor.cached(specs["scale"])
        self._names = tuple(specs)
        self._scalar = scalar_type(DTYPES[problem.x.dtype].accumulate)
        self.workspace = self._ask(context) if extended else 0

    def _ask(self, context: Context) -> int:
        """Bytes of workspace."""
        x, dy, dx = self._data
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        head, library = (context.handle, self._mode, BatchNormOps.BN), context.library
        library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(*head, None, x, ctypes.byref(reserve))
        if reserve.value:
            raise NotSupportedError(f"it reads {reserve.value:,} bytes that no forward step has kept for it")
        library.cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            *head, x, None, dy, None, dx, self._parameters, None, ctypes.byref(workspace)
        )
        return workspace.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue one call, or two."""
        at = dict(zip(self._names, pointers, strict=True))
        scalar, library = self._scalar, context.library
        one, zero = scalar(1.0), scalar(0.0)
        gradient = at["dy"]
        if self._pointwise:
            y, dy, dz = self._pointwise
            gradient = at["dz"]
            library.cudnnActivationBackward(
                context.handle, self._relu, one, y, at["y"], dy, at["dy"], y, at["y"], zero, dz, gradient
            )
        x_descriptor, dy_descriptor, dx_descriptor = self._data
        factors = scalar(alpha), scalar(beta), one, zero
        inputs = x_descriptor, at["x"]
        gradients = dy_descriptor, gradient
        results = dx_descriptor, at["dx"], self._parameters, at["scale"]
        sums = at["dscale"], at["dbias"], self._epsilon, at.get("mean"), at.get("invstd")
        if not self._extended:
            library.cudnnBatchNormalizationBackward(
                context.handle, self._mode, *factors, *inputs, *gradients, *results, *sums
            )
            return
        nbytes = self.workspace
        library.cudnnBatchNormalizationBackwardEx(
            context.handle,
            self._mode,
            BatchNormOps.BN,
            *factors,
            *inputs,
            *(None, None),  # y, which only a fused activation reads
            *gradients,
            *(None, None),  # dz, likewise
            *results,
            None,  # bias, likewise
            *sums,
            None,
            context.workspace(nbytes) or None,
            nbytes,
            None,
            0,
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        before = "cudnnActivationBackward, " if self._pointwise else ""
        extended = "Ex" if self._extended else ""
        return f"chosen: {before}cudnnBatchNormalizationBackward{extended}, {told(self._mode)}"


class EmptyPlan:
    """What is left of a batch normalisation of nothing: each parameter's result has one value."""

    __slots__ = ("_results", "workspace")

    def __init__(self, problem: NormTraining | NormGradient) -> None:
        _, first, second, *_ = results = problem.results
        training = isinstance(problem, NormTraining)
        value = scalar_type(first.dtype)(float("nan") if training else 0.0)
        self._results = [
            (place - len(results), *pointwise(spec), value)
            for place, spec in ((1, first), (2, second))
            if spec.size
        ]
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Fill what is not empty: means of nothing are NaN, sums of nothing are 0."""
        for place, descriptor, value in self._results:
            context.library.cudnnSetTensor(context.handle, descriptor, pointers[place], value)

    def describe(self) -> str:
        """Tell what was chosen."""
        return "chosen: x is empty, only statistics or sums are filled"
