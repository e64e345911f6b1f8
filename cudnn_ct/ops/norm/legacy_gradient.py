"""Gradient of batch normalisation by legacy calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..._bindings.enums import BatchNormMode, BatchNormOps
from ...context import Context
from ...descriptors import TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.call import ArgumentTemplate, PointerSlot
from ...plans.scalars import scalar_type
from ...shapes.norm import NormGradient
from .layouts import Specs, pointwise
from .legacy import activation, enum_label

__all__ = ["GradientPlan"]

_slot = PointerSlot  # a short name, for long lists of arguments
_WORKSPACE = -4  # index among the arguments of cudnnBatchNormalizationBackwardEx


class GradientPlan:
    """``cudnnBatchNormalizationBackward``, or the ``Ex`` variant with a workspace if ``extended``.

    With a fused activation, ``cudnnActivationBackward`` runs first and computes dz.
    """

    def __init__(
        self,
        problem: NormGradient,
        context: Context,
        specs: Specs,
        mode: BatchNormMode,
        extended: bool = False,
    ) -> None:
        self._mode, self._extended = mode, extended
        self._relu = activation(problem.activation)
        names, activated = list(specs), ("y", "dy", "dz") if self._relu else ()
        self._pointwise = pointwise(*(specs[name] for name in activated))
        self._activated = [names.index(name) for name in activated]
        gradient = "dz" if self._relu else "dy"
        x, dy, dx, scale = (TensorDescriptor.cached(specs[name]) for name in ("x", gradient, "dx", "scale"))
        self._scalar = scalar = scalar_type(DTYPES[problem.x.dtype].accumulate)
        self.workspace = self._workspace_bytes(context, x, dy, dx, scale) if extended else 0
        epsilon = ctypes.c_double(problem.epsilon)
        # The extended call also takes y, dz, the bias and an activation, which a fused activation would use.
        ops, null, no_bias = ([BatchNormOps.BN], [None, None], [None]) if extended else ([], [], [])
        end = [None, None, self.workspace, None, 0] if extended else []
        arguments = [
            mode, *ops, scalar(1.0), scalar(0.0), scalar(1.0), scalar(0.0),
            x, _slot("x"), *null, dy, _slot(gradient), *null, dx, _slot("dx"), scale, _slot("scale"),
            *no_bias, _slot("dscale"), _slot("dbias"), epsilon, _slot("mean"), _slot("invstd"), *end,
        ]  # fmt: skip
        self._arguments = ArgumentTemplate(arguments, names)

    def _workspace_bytes(self, context: Context, x: Any, dy: Any, dx: Any, parameters: Any) -> int:
        """Return the workspace size; reject modes that need reserve space of the forward pass."""
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        head, library = (context.handle, self._mode, BatchNormOps.BN), context.library
        library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(*head, None, x, ctypes.byref(reserve))
        if reserve.value:
            raise NotSupportedError(f"it needs {reserve.value:,} bytes of reserve space of the forward pass")
        library.cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            *head, x, None, dy, None, dx, parameters, None, ctypes.byref(workspace)
        )
        return workspace.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue one call, or two if there is an activation."""
        scalar, library, extended = self._scalar, context.library, self._extended
        arguments = self._arguments.filled(pointers)
        if alpha != 1 or beta:
            at = 2 if extended else 1
            arguments[at : at + 2] = scalar(alpha), scalar(beta)
        if self.workspace:
            arguments[_WORKSPACE] = context.workspace(self.workspace)
        if self._pointwise:
            y, dy, dz = zip(self._pointwise, (pointers[place] for place in self._activated), strict=True)
            library.cudnnActivationBackward(
                context.handle, self._relu, scalar(1.0), *y, *dy, *y, scalar(0.0), *dz
            )
        name = f"cudnnBatchNormalizationBackward{'Ex' if extended else ''}"
        getattr(library, name)(context.handle, *arguments)

    def describe(self) -> str:
        """Describe the implementation."""
        before = "cudnnActivationBackward, " if self._pointwise else ""
        extended = "Ex" if self._extended else ""
        return f"chosen: {before}cudnnBatchNormalizationBackward{extended}, {enum_label(self._mode)}"
