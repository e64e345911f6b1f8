"""Batch normalisation by the legacy calls: training and inference."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from .._bindings.enums import BatchNormMode, BatchNormOps
from ..context import Context
from ..descriptors import ActivationDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import BadParamError, NotSupportedError
from ..problem import ActivationSpec, NormInference, NormTraining, TensorSpec
from .native import scalar_type
from .norm_forms import Specs, pointwise
from .scratch import placed_after
from .turns import in_turn, too_late

__all__ = ["PART", "InferencePlan", "TrainingPlan", "activation", "told"]

PART = 65_535  # images that one call of inference takes


class TrainingPlan:
    """``cudnnBatchNormalizationForwardTrainingEx``, and calls after it for what it does not do itself.

    What the call keeps for a gradient that is fused too is scratch memory: the gradient here finds where the
    activation was off from y.
    """

    __slots__ = (
        "_added",
        "_data",
        "_factors",
        "_fused",
        "_held",
        "_inputs",
        "_mode",
        "_ops",
        "_parameters",
        "_pointwise",
        "_relu",
        "_reserve",
        "_scalar",
        "_sizes",
        "workspace",
    )

    def __init__(
        self, problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode, fused: bool
    ) -> None:
        z, y = specs.get("z"), specs["y"]
        self._mode, self._ops = mode, BatchNormOps.BN
        if fused:
            self._ops = BatchNormOps.BN_ADD_ACTIVATION if z else BatchNormOps.BN_ACTIVATION
        self._fused = fused
        self._inputs = 4 if z else 3
        self._data = TensorDescriptor.cached(specs["x"]), TensorDescriptor.cached(y)
        self._added = TensorDescriptor.cached(z) if z and fused else None
        self._parameters = TensorDescriptor.cached(specs["scale"])
        self._relu = activation(problem.activation)
        self._factors = ctypes.c_double(problem.momentum), ctypes.c_double(problem.epsilon)
        self._scalar = scalar_type(DTYPES[y.dtype].accumulate)
        # Whatever comes after must not be refused: running statistics are updated only once.
        after = [] if fused else [y, z] if z else [y] if self._relu else []
        self._pointwise = pointwise(*after)
        self._sizes = self._ask(context)
        self._reserve, self.workspace = placed_after(*self._sizes)
        self._held = 0
        if self._pointwise and self._relu and problem.scaled:
            self._held, self.workspace = placed_after(self.workspace, y.size * DTYPES[y.dtype].itemsize)

    def _ask(self, context: Context) -> tuple[int, int]:
        """Bytes of workspace and of reserve space."""
        x, y = self._data
        head = context.handle, self._mode, self._ops
        relu = self._relu if self._fused else None
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        context.library.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
            *head, x, self._added, y, self._parameters, relu, ctypes.byref(workspace)
        )
        context.library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
            *head, relu, x, ctypes.byref(reserve)
        )
        return workspace.value, reserve.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the call, and what comes after it."""
        library, handle, scalar = context.library, context.handle, self._scalar
        y, base = pointers[self._inputs], context.workspace(self.workspace)
        factors = scalar(alpha), scalar(beta)
        if not self._pointwise:
            return self._normalise(context, pointers, y, base, *factors)
        whole, *added = self._pointwise
        relu, one, zero = self._relu, scalar(1.0), scalar(0.0)
        target = base + self._held if relu and beta else y
        # With an activation the factors are of what it gives.
        self._normalise(context, pointers, target, base, *((one, zero) if relu else factors))
        try:
            if added:
                factor = one if relu else factors[0]
                library.cudnnAddTensor(handle, factor, *added, pointers[3], one, whole, target)
            if relu:
                library.cudnnActivationForward(handle, relu, factors[0], whole, target, factors[1], whole, y)
        except (BadParamError, NotSupportedError) as error:
            raise too_late(error) from error

    def _normalise(
        self, context: Context, pointers: Sequence[int], y: int, base: int, alpha: Any, beta: Any
    ) -> None:
        x, scale, bias, *z = pointers[: self._inputs]
        _, mean, invstd, *running = pointers[self._inputs :]
        running_mean, running_var = running or (None, None)
        momentum, epsilon = self._factors
        nbytes, reserved = self._sizes
        x_descriptor, y_descriptor = self._data
        context.library.cudnnBatchNormalizationForwardTrainingEx(
            context.handle,
            self._mode,
            self._ops,
            alpha,
            beta,
            x_descriptor,
            x,
            self._added,
            z[0] if self._added else None,
            y_descriptor,
            y,
            self._parameters,
            scale,
            bias,
            momentum,
            running_mean,
            running_var,
            epsilon,
            mean,
            invstd,
            self._relu if self._fused else None,
            base if nbytes else None,
            nbytes,
            base + self._reserve if reserved else None,
            reserved,
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        after = "; what follows by calls of their own" if self._pointwise else ""
        what = f"{told(self._mode)}, {told(self._ops)}"
        return f"chosen: cudnnBatchNormalizationForwardTrainingEx, {what}{after}"


class InferencePlan:
    """``cudnnBatchNormalizationForwardInference``, on the batch or one part of it after the other."""

    __slots__ = ("_epsilon", "_mode", "_parameters", "_parts", "_scalar", "workspace")

    def __init__(
        self, problem: NormInference, specs: Specs, mode: BatchNormMode, images: int | None = None
    ) -> None:
        x, y = specs["x"], specs["y"]
        self._mode, self._epsilon = mode, ctypes.c_double(problem.epsilon)
        self._scalar = scalar_type(DTYPES[x.dtype].accumulate)
        self._parameters = TensorDescriptor.cached(specs["scale"])
        batch, itemsize = x.shape[0], DTYPES[x.dtype].itemsize
        self._parts = []
        for start in range(0, batch, images or batch):
            count = min(images or batch, batch - start)
            steps = (start * itemsize * x.strides[0], start * itemsize * y.strides[0])
            self._parts.append((*steps, _images(x, count), _images(y, count)))
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue a call for each part."""
        if len(self._parts) == 1:
            self._part(context, pointers, alpha, beta, *self._parts[0])
        else:
            in_turn(partial(self._part, context, pointers, alpha, beta, *part) for part in self._parts)

    def _part(
        self,
        context: Context,
        pointers: Sequence[int],
        alpha: float,
        beta: float,
        read: int,
        written: int,
        x_descriptor: TensorDescriptor,
        y_descriptor: TensorDescriptor,
    ) -> None:
        x, scale, bias, mean, var, y = pointers
        context.library.cudnnBatchNormalizationForwardInference(
            context.handle,
            self._mode,
            self._scalar(alpha),
            self._scalar(beta),
            x_descriptor,
            x + read,
            y_descriptor,
            y + written,
            self._parameters,
            scale,
            bias,
            mean,
            var,
            self._epsilon,
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        calls = f" in {len(self._parts)} calls" if len(self._parts) > 1 else ""
        return f"chosen: cudnnBatchNormalizationForwardInference, {told(self._mode)}{calls}"


def activation(name: str | None) -> ActivationDescriptor | None:
    """The descriptor of an activation, if there is one."""
    return ActivationDescriptor.cached(ActivationSpec(name)) if name else None


def _images(spec: TensorSpec, count: int) -> TensorDescriptor:
    return TensorDescriptor.cached(spec._replace(shape=(count, *spec.shape[1:])))


def told(member: Any) -> str:
    """An enum member as people read it."""
    return str(member.name).lower().replace("_", " ")
