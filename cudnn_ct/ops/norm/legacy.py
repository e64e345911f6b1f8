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
from ...plans import program
from ...plans.axes import collapse
from ...plans.program import ArgumentTemplate, FunctionPlan, PointerSlot, append, scalar_type
from ...shapes.norm import NormGradient, NormInference, NormTraining
from ...shapes.specs import INT_MAX, ActivationSpec, Specs, TensorSpec

_slot = PointerSlot  # a short name, for long lists of arguments

# Indices among the arguments of cudnnBatchNormalizationForwardTrainingEx, without the handle.
_ALPHA, _BETA, _Y, _WORKSPACE, _RESERVE = 2, 3, 9, 20, 22
_GRADIENT_WORKSPACE = -4  # index among the arguments of cudnnBatchNormalizationBackwardEx


def training_plan(
    problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode, fused: bool = False
) -> FunctionPlan:
    """Return ``cudnnBatchNormalizationForwardTrainingEx``, and further calls for operations it cannot fuse.

    The reserve space of the call is treated as workspace, because the gradient recomputes the mask of the
    activation from y. Alpha and beta scale the last of the operations.
    """
    z, y, ops = specs.get("z"), specs["y"], BatchNormOps.BN
    if fused:
        ops = BatchNormOps.BN_ADD_ACTIVATION if z else BatchNormOps.BN_ACTIVATION
    of_z, relu = list(specs).index("z") if z else 0, _activation(problem.activation)
    scalar = scalar_type(DTYPES[y.dtype].accumulate)
    # Later calls must not be rejected, because the running statistics are already updated then.
    pointwise = _collapsed(*([] if fused else [y, z] if z else [y] if relu else []))
    own_relu, own_z, relu = (relu, z, None) if fused else (None, None, relu)
    x_, y_, scale_ = (TensorDescriptor.cached(specs[name]) for name in ("x", "y", "scale"))
    z_ = own_z and TensorDescriptor.cached(own_z)
    sizes, head = (ctypes.c_size_t(), ctypes.c_size_t()), (context.handle, mode, ops)
    library = context.library
    library.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        *head, x_, z_, y_, scale_, own_relu, ctypes.byref(sizes[0])
    )
    library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(*head, own_relu, x_, ctypes.byref(sizes[1]))
    nbytes, reserved = (size.value for size in sizes)
    momentum, epsilon = ctypes.c_double(problem.momentum), ctypes.c_double(problem.epsilon)
    arguments = [
        mode, ops, scalar(1.0), scalar(0.0),
        x_, _slot("x"), z_, _slot("z") if own_z else None, y_, _slot("y"),
        scale_, _slot("scale"), _slot("bias"), momentum, _slot("running_mean"), _slot("running_var"),
        epsilon, _slot("mean"), _slot("invstd"),
        own_relu, None, nbytes, None, reserved,
    ]  # fmt: skip
    template = ArgumentTemplate(arguments, specs)
    reserve, workspace = program.align_after(nbytes, reserved)
    held = 0
    if relu and problem.scaled:
        held, workspace = append(workspace, y)

    def run(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        arguments, base, library = template.filled(pointers), context.workspace(workspace), context.library
        if nbytes:
            arguments[_WORKSPACE] = base
        if reserved:
            arguments[_RESERVE] = base + reserve
        result = target = arguments[_Y]
        if relu and beta:
            target = arguments[_Y] = base + held
        if not relu and (alpha != 1 or beta):
            arguments[_ALPHA], arguments[_BETA] = scalar(alpha), scalar(beta)
        library.cudnnBatchNormalizationForwardTrainingEx(context.handle, *arguments)
        if not pointwise:
            return
        whole, *added = pointwise
        one, alpha_, beta_ = scalar(1.0), scalar(alpha), scalar(beta)
        try:
            if added:
                factor = one if relu else alpha_
                library.cudnnAddTensor(context.handle, factor, *added, pointers[of_z], one, whole, target)
            if relu:
                data = alpha_, whole, target, beta_, whole, result
                library.cudnnActivationForward(context.handle, relu, *data)
        except (BadParamError, NotSupportedError) as error:
            raise program.partial_write_error(error) from error

    about = f"cudnnBatchNormalizationForwardTrainingEx, {_label(mode)}, {_label(ops)}"
    about += "; z and activation by separate calls" if pointwise else ""
    return FunctionPlan(about, run, workspace)


def gradient_plan(
    problem: NormGradient, context: Context, specs: Specs, mode: BatchNormMode, extended: bool = False
) -> FunctionPlan:
    """Return ``cudnnBatchNormalizationBackward``, or the ``Ex`` variant with a workspace if ``extended``."""
    # With a fused activation, ``cudnnActivationBackward`` runs first and computes dz. Modes that need reserve
    # space of the forward pass are rejected.
    relu = _activation(problem.activation)
    names, activated = list(specs), ("y", "dy", "dz") if relu else ()
    pointwise = _collapsed(*(specs[name] for name in activated))
    places = [names.index(name) for name in activated]
    gradient = "dz" if relu else "dy"
    x, dy, dx, scale = (TensorDescriptor.cached(specs[name]) for name in ("x", gradient, "dx", "scale"))
    scalar, workspace = scalar_type(DTYPES[problem.x.dtype].accumulate), ctypes.c_size_t()
    if extended:
        reserve, head = ctypes.c_size_t(), (context.handle, mode, BatchNormOps.BN)
        library = context.library
        library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(*head, None, x, ctypes.byref(reserve))
        if reserve.value:
            raise NotSupportedError(f"it needs {reserve.value:,} bytes of reserve space of the forward pass")
        library.cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            *head, x, None, dy, None, dx, scale, None, ctypes.byref(workspace)
        )
    nbytes, epsilon = workspace.value, ctypes.c_double(problem.epsilon)
    # The extended call also takes y, dz, the bias and an activation, which a fused activation would use.
    ops, null, no_bias = ([BatchNormOps.BN], [None, None], [None]) if extended else ([], [], [])
    end = [None, None, nbytes, None, 0] if extended else []
    arguments = [
        mode, *ops, scalar(1.0), scalar(0.0), scalar(1.0), scalar(0.0),
        x, _slot("x"), *null, dy, _slot(gradient), *null, dx, _slot("dx"), scale, _slot("scale"),
        *no_bias, _slot("dscale"), _slot("dbias"), epsilon, _slot("mean"), _slot("invstd"), *end,
    ]  # fmt: skip
    template = ArgumentTemplate(arguments, names)
    name = f"cudnnBatchNormalizationBackward{'Ex' if extended else ''}"

    def run(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        arguments = template.filled(pointers)
        if alpha != 1 or beta:
            at = 2 if extended else 1
            arguments[at : at + 2] = scalar(alpha), scalar(beta)
        if nbytes:
            arguments[_GRADIENT_WORKSPACE] = context.workspace(nbytes)
        if pointwise:
            y, dy, dz = zip(pointwise, (pointers[place] for place in places), strict=True)
            context.library.cudnnActivationBackward(
                context.handle, relu, scalar(1.0), *y, *dy, *y, scalar(0.0), *dz
            )
        getattr(context.library, name)(context.handle, *arguments)

    before = "cudnnActivationBackward, " if pointwise else ""
    return FunctionPlan(f"{before}{name}, {_label(mode)}", run, nbytes)


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
    """Return descriptors of element-wise operands, collapsed into one axis."""
    # cuDNN supports this view for every order of axes, and it is fast with channels last.
    if specs and specs[0].size <= INT_MAX:
        specs = tuple(collapse(specs, [(), (), (), range(len(specs[0].shape))]))
    return [TensorDescriptor.cached(spec) for spec in specs]
