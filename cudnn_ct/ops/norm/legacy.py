"""Batch normalisation by the legacy calls: training, gradient and inference."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..._bindings.enums import BatchNormMode, BatchNormOps
from ...context import Context
from ...descriptors import ActivationDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import BadParamError, NotSupportedError
from ...plans.axes import collapse
from ...plans.call import ArgumentTemplate, FunctionPlan, PointerSlot, scalar_type
from ...plans.program import partial_write_error
from ...plans.workspace import align_after, append
from ...shapes.norm import NormGradient, NormInference, NormTraining
from ...shapes.specs import INT_MAX, ActivationSpec, TensorSpec

Specs = dict[str, TensorSpec]

_slot = PointerSlot  # a short name, for long lists of arguments

# Indices among the arguments of cudnnBatchNormalizationForwardTrainingEx, without the handle.
_ALPHA, _BETA, _Y, _WORKSPACE, _RESERVE = 2, 3, 9, 20, 22
_GRADIENT_WORKSPACE = -4  # index among the arguments of cudnnBatchNormalizationBackwardEx


class TrainingPlan:
    """``cudnnBatchNormalizationForwardTrainingEx``, and further calls for operations it cannot fuse.

    The reserve space of the call is treated as workspace, because the gradient recomputes the mask of the
    activation from y.
    """

    def __init__(
        self, problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode, fused: bool = False
    ) -> None:
        z, y = specs.get("z"), specs["y"]
        self._mode, self._ops = mode, BatchNormOps.BN
        if fused:
            self._ops = BatchNormOps.BN_ADD_ACTIVATION if z else BatchNormOps.BN_ACTIVATION
        self._z = list(specs).index("z") if z else 0
        self._relu = relu = _activation(problem.activation)
        self._scalar = scalar = scalar_type(DTYPES[y.dtype].accumulate)
        # Later calls must not be rejected, because the running statistics are already updated then.
        after = [] if fused else [y, z] if z else [y] if relu else []
        self._pointwise = _collapsed(*after)
        own_relu, own_z = (relu, z) if fused else (None, None)
        x_, y_, scale_ = (TensorDescriptor.cached(specs[name]) for name in ("x", "y", "scale"))
        z_ = own_z and TensorDescriptor.cached(own_z)
        self._sizes = nbytes, reserved = self._query_sizes(context, x_, z_, y_, scale_, own_relu)
        momentum, epsilon = ctypes.c_double(problem.momentum), ctypes.c_double(problem.epsilon)
        arguments = [
            mode, self._ops, scalar(1.0), scalar(0.0),
            x_, _slot("x"), z_, _slot("z") if own_z else None, y_, _slot("y"),
            scale_, _slot("scale"), _slot("bias"), momentum, _slot("running_mean"), _slot("running_var"),
            epsilon, _slot("mean"), _slot("invstd"),
            own_relu, None, nbytes, None, reserved,
        ]  # fmt: skip
        self._arguments = ArgumentTemplate(arguments, specs)
        self._reserve, self.workspace = align_after(nbytes, reserved)
        self._held = 0
        if self._pointwise and relu and problem.scaled:
            self._held, self.workspace = append(self.workspace, y)

    def _query_sizes(
        self, context: Context, x: Any, z: Any, y: Any, parameters: Any, relu: Any
    ) -> tuple[int, int]:
        """Return the sizes of workspace and reserve space, in bytes."""
        library, head = context.library, (context.handle, self._mode, self._ops)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        library.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
            *head, x, z, y, parameters, relu, ctypes.byref(workspace)
        )
        library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(*head, relu, x, ctypes.byref(reserve))
        return workspace.value, reserve.value

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the call, then add z and apply the activation unless they are fused.

        Alpha and beta scale the last of these operations.
        """
        arguments, base = self._arguments.filled(pointers), context.workspace(self.workspace)
        library, (nbytes, reserved) = context.library, self._sizes
        if nbytes:
            arguments[_WORKSPACE] = base
        if reserved:
            arguments[_RESERVE] = base + self._reserve
        relu = self._relu if self._pointwise else None
        y = target = arguments[_Y]
        if relu and beta:
            target = arguments[_Y] = base + self._held
        if not relu and (alpha != 1 or beta):
            arguments[_ALPHA], arguments[_BETA] = self._scalar(alpha), self._scalar(beta)
        library.cudnnBatchNormalizationForwardTrainingEx(context.handle, *arguments)
        if not self._pointwise:
            return
        whole, *added = self._pointwise
        one, alpha_, beta_ = self._scalar(1.0), self._scalar(alpha), self._scalar(beta)
        try:
            if added:
                factor, z = one if relu else alpha_, pointers[self._z]
                library.cudnnAddTensor(context.handle, factor, *added, z, one, whole, target)
            if relu:
                data = alpha_, whole, target, beta_, whole, y
                library.cudnnActivationForward(context.handle, relu, *data)
        except (BadParamError, NotSupportedError) as error:
            raise partial_write_error(error) from error

    def describe(self) -> str:
        """Describe the implementation."""
        after = "; z and activation by separate calls" if self._pointwise else ""
        what = f"{_label(self._mode)}, {_label(self._ops)}"
        return f"chosen: cudnnBatchNormalizationForwardTrainingEx, {what}{after}"


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
        self._relu = _activation(problem.activation)
        names, activated = list(specs), ("y", "dy", "dz") if self._relu else ()
        self._pointwise = _collapsed(*(specs[name] for name in activated))
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
            arguments[_GRADIENT_WORKSPACE] = context.workspace(self.workspace)
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
        return f"chosen: {before}cudnnBatchNormalizationBackward{extended}, {_label(self._mode)}"


def inference_plan(
    problem: NormInference, _: Context, specs: Specs, mode: BatchNormMode
) -> FunctionPlan | None:
    """Return ``cudnnBatchNormalizationForwardInference``, which takes no parameters in half precision."""
    if in_half_precision(problem):
        return None
    x, y, parameters = (TensorDescriptor.cached(specs[name]) for name in ("x", "y", "scale"))
    slots = map(_slot, ("scale", "bias", "mean", "var"))
    arguments = [x, _slot("x"), y, _slot("y"), parameters, *slots, ctypes.c_double(problem.epsilon)]
    template, scalar = ArgumentTemplate(arguments, specs), scalar_type(DTYPES[problem.x.dtype].accumulate)

    def run(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        context.library.cudnnBatchNormalizationForwardInference(
            context.handle, mode, scalar(alpha), scalar(beta), *template.filled(pointers)
        )

    return FunctionPlan(f"cudnnBatchNormalizationForwardInference, {_label(mode)}", run)


def in_half_precision(problem: NormInference) -> bool:
    """Return whether the parameters are in half precision."""
    return DTYPES[problem.scale.dtype].itemsize == 2


def _activation(name: str | None) -> ActivationDescriptor | None:
    """Return the descriptor of an activation, or None."""
    # The only name is "relu".
    return ActivationDescriptor.cached(ActivationSpec(name)) if name else None  # type: ignore[arg-type]


def _label(member: Any) -> str:
    """Format an enum member for messages."""
    return str(member.name).lower().replace("_", " ")


def _collapsed(*specs: TensorSpec) -> list[TensorDescriptor]:
    """Return descriptors of element-wise operands, collapsed into one axis.

    cuDNN supports this view for every order of axes, and it is fast with channels last.
    """
    if specs and specs[0].size <= INT_MAX:
        specs = tuple(collapse(specs, [(), (), (), range(len(specs[0].shape))]))
    return [TensorDescriptor.cached(spec) for spec in specs]
