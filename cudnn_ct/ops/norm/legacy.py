"""Batch normalisation by the legacy calls: training and inference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._bindings.enums import BatchNormMode, BatchNormOps
from ...context import Context
from ...descriptors import ActivationDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import BadParamError, NotSupportedError
from ...plans.call import ArgumentTemplate, PointerSlot
from ...plans.chain import partial_write_error, run_all
from ...plans.scalars import scalar_type
from ...plans.workspace import align_after
from ...shapes.norm_problem import NormInference, NormTraining
from ...shapes.specs import ActivationSpec, TensorSpec
from .layouts import Specs, pointwise

__all__ = ["PART", "InferencePlan", "TrainingPlan", "activation", "enum_label"]

# Batch size of one inference call: below cuDNN's limit of 2**16, and a multiple of 16, so that parts of an
# aligned array are aligned.
PART = 65_520

# Indices among the arguments of cudnnBatchNormalizationForwardTrainingEx, without the handle.
_ALPHA, _BETA, _Y, _WORKSPACE, _RESERVE = 2, 3, 9, 20, 22


class TrainingPlan:
    """``cudnnBatchNormalizationForwardTrainingEx``, and further calls for operations it cannot fuse.

    The reserve space of the call is treated as workspace, because the gradient recomputes the mask of the
    activation from y.
    """

    __slots__ = (
        "_arguments",
        "_held",
        "_mode",
        "_ops",
        "_pointwise",
        "_relu",
        "_reserve",
        "_scalar",
        "_sizes",
        "_z",
        "workspace",
    )

    def __init__(
        self, problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode, fused: bool
    ) -> None:
        z, y = specs.get("z"), specs["y"]
        self._mode, self._ops = mode, BatchNormOps.BN
        if fused:
            self._ops = BatchNormOps.BN_ADD_ACTIVATION if z else BatchNormOps.BN_ACTIVATION
        self._z = list(specs).index("z") if z else 0
        self._relu = relu = activation(problem.activation)
        self._scalar = scalar = scalar_type(DTYPES[y.dtype].accumulate)
        # Later calls must not be rejected, because the running statistics are already updated then.
        after = [] if fused else [y, z] if z else [y] if relu else []
        self._pointwise = pointwise(*after)
        own_relu, own_z = (relu, z) if fused else (None, None)
        data = TensorDescriptor.cached(specs["x"]), own_z and TensorDescriptor.cached(own_z)
        written, parameters = TensorDescriptor.cached(y), TensorDescriptor.cached(specs["scale"])
        self._sizes = nbytes, reserved = self._query_sizes(context, *data, written, parameters, own_relu)
        self._arguments = ArgumentTemplate(
            [
                *(mode, self._ops, scalar(1.0), scalar(0.0)),
                *(
                    data[0],
                    PointerSlot("x"),
                    data[1],
                    PointerSlot("z") if own_z else None,
                    written,
                    PointerSlot("y"),
                ),
                *(parameters, PointerSlot("scale"), PointerSlot("bias"), ctypes.c_double(problem.momentum)),
                *(PointerSlot("running_mean"), PointerSlot("running_var"), ctypes.c_double(problem.epsilon)),
                *(PointerSlot("mean"), PointerSlot("invstd"), own_relu, None, nbytes, None, reserved),
            ],
            specs,
        )
        self._reserve, self.workspace = align_after(nbytes, reserved)
        self._held = 0
        if self._pointwise and relu and problem.scaled:
            self._held, self.workspace = align_after(self.workspace, y.size * DTYPES[y.dtype].itemsize)

    def _query_sizes(
        self, context: Context, x: Any, z: Any, y: Any, parameters: Any, relu: Any
    ) -> tuple[int, int]:
        """Return the sizes of workspace and reserve space, in bytes."""
        head = context.handle, self._mode, self._ops
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        context.library.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
            *head, x, z, y, parameters, relu, ctypes.byref(workspace)
        )
        context.library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
            *head, relu, x, ctypes.byref(reserve)
        )
        return workspace.value, reserve.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the call and the unfused operations."""
        arguments, base = self._arguments.filled(pointers), context.workspace(self.workspace)
        nbytes, reserved = self._sizes
        if nbytes:
            arguments[_WORKSPACE] = base
        if reserved:
            arguments[_RESERVE] = base + self._reserve
        call = context.library.cudnnBatchNormalizationForwardTrainingEx
        if self._pointwise:
            self._run_unfused(context, call, arguments, base, pointers, alpha, beta)
            return
        if alpha != 1 or beta:
            arguments[_ALPHA], arguments[_BETA] = self._scalar(alpha), self._scalar(beta)
        call(context.handle, *arguments)

    def _run_unfused(
        self,
        context: Context,
        call: Callable[..., object],
        arguments: list[Any],
        base: int,
        pointers: Sequence[int],
        alpha: float,
        beta: float,
    ) -> None:
        """Run the call, add z and apply the activation. Alpha and beta scale the last of these operations."""
        library, handle, scalar, relu = context.library, context.handle, self._scalar, self._relu
        whole, *added = self._pointwise
        one, factors = scalar(1.0), (scalar(alpha), scalar(beta))
        y = target = arguments[_Y]
        if relu and beta:
            target = arguments[_Y] = base + self._held
        if not relu:
            arguments[_ALPHA], arguments[_BETA] = factors
        call(handle, *arguments)
        try:
            if added:
                factor = one if relu else factors[0]
                library.cudnnAddTensor(handle, factor, *added, pointers[self._z], one, whole, target)
            if relu:
                library.cudnnActivationForward(handle, relu, factors[0], whole, target, factors[1], whole, y)
        except (BadParamError, NotSupportedError) as error:
            raise partial_write_error(error) from error

    def describe(self) -> str:
        """Describe the implementation."""
        after = "; z and activation by separate calls" if self._pointwise else ""
        what = f"{enum_label(self._mode)}, {enum_label(self._ops)}"
        return f"chosen: cudnnBatchNormalizationForwardTrainingEx, {what}{after}"


class InferencePlan:
    """``cudnnBatchNormalizationForwardInference`` for the whole batch, or for one part after another."""

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
            offsets = (start * itemsize * x.strides[0], start * itemsize * y.strides[0])
            self._parts.append((*offsets, _images(x, count), _images(y, count)))
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue one call per part."""
        if len(self._parts) == 1:
            self._part(context, pointers, alpha, beta, *self._parts[0])
        else:
            run_all(partial(self._part, context, pointers, alpha, beta, *part) for part in self._parts)

    def _part(
        self,
        context: Context,
        pointers: Sequence[int],
        alpha: float,
        beta: float,
        x_offset: int,
        y_offset: int,
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
            x + x_offset,
            y_descriptor,
            y + y_offset,
            self._parameters,
            scale,
            bias,
            mean,
            var,
            self._epsilon,
        )

    def describe(self) -> str:
        """Describe the implementation."""
        calls = f" in {len(self._parts)} calls" if len(self._parts) > 1 else ""
        return f"chosen: cudnnBatchNormalizationForwardInference, {enum_label(self._mode)}{calls}"


def activation(name: str | None) -> ActivationDescriptor | None:
    """Return the descriptor of an activation, or None."""
    return ActivationDescriptor.cached(ActivationSpec(name)) if name else None


def _images(spec: TensorSpec, count: int) -> TensorDescriptor:
    return TensorDescriptor.cached(spec._replace(shape=(count, *spec.shape[1:])))


def enum_label(member: Any) -> str:
    """Format an enum member for messages."""
    return str(member.name).lower().replace("_", " ")
