"""Implementations of batch normalisation by legacy calls and by graphs, fastest first.

The persistent modes were faster in all training steps measured, by a factor of 2 in C order and 50 with
channels last. If the parameter axes are innermost, a sample is a row of activations or a pixel of one image.
One mode can then replace another, which avoids the batch limits of single modes.

The limits are checked here and not left to cuDNN: above them, version 9.19 updates the running statistics
before it rejects the call, or returns an internal error.
"""

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
from ...plans import program
from ...plans.axes import collapse, images
from ...plans.base import Plan, tensors_of
from ...plans.elementwise import fill_plan
from ...plans.program import ArgumentTemplate, FunctionPlan, Step, chained, scalar_type
from ...plans.program import PointerSlot as Slot
from ...plans.wrappers import with_wide
from ...shapes import norm as rules
from ...shapes.arithmetic import HALF
from ...shapes.norm import NormGradient, NormInference, NormTraining
from ...shapes.specs import INT_MAX, LAYOUTS, ActivationSpec, Specs, TensorSpec, results_of
from .._formulas import NamedFormulas, matrix_of, pointwise, total
from .._implementations import Implementation, by_engines

# --- batch normalisation by graphs alone, for a cuDNN that has no legacy calls -----------------------------

_DATA = {"x", "y", "z", "dx", "dy", "dz"}


def _norm(problem: NormTraining | NormInference | NormGradient, context: Context) -> NamedFormulas | None:
    tensors = _tensors(problem)
    vectors = {name: spec for name, spec in tensors.items() if name not in _DATA}
    matrix = matrix_of([tensors[name] for name in tensors if name in _DATA], [*vectors.values()])
    # Matrices one behind another would have sums of each.
    return None if matrix is None or matrix.number > 1 else NamedFormulas(problem, matrix, context, vectors)


def training_by_formulas(problem: NormTraining, context: Context) -> Plan | None:
    """Return a plan of a training step: the mean, the variance, the result and the running statistics."""
    if (norm := _norm(problem, context)) is None:
        return None
    terms = norm.read("x", "scale", "bias", "z", "running_mean", "running_var")
    x, share = terms["x"], 1 / rules.norm_samples(problem.x.shape, problem.mode)
    mean = norm.write("mean", total(x) * share)
    difference = x - mean
    variance = total(difference * difference) * share
    inverse = norm.write("invstd", pointwise("rsqrt", variance + problem.epsilon))
    y = difference * inverse * terms["scale"] + terms["bias"]
    y = y + terms["z"] if problem.z else y
    norm.write("y", pointwise("relu_fwd", y) if problem.activation else y)
    if problem.running_mean:
        weight, unbiased = problem.momentum, 1 / (1 - share)
        for name, value in (("running_mean", mean * weight), ("running_var", variance * (weight * unbiased))):
            norm.write(name, terms[name] * (1 - weight) + value)
    return norm.program()


def inference_by_formulas(problem: NormInference, context: Context) -> Plan | None:
    if (norm := _norm(problem, context)) is None:
        return None
    x, scale, bias, mean, var = norm.read("x", "scale", "bias", "mean", "var").values()
    norm.write("y", (x - mean) * (pointwise("rsqrt", var + problem.epsilon) * scale) + bias)
    return norm.program()


def gradient_by_formulas(problem: NormGradient, context: Context) -> Plan | None:
    """Return a plan of the gradients, with the statistics of x if they are not given."""
    if (norm := _norm(problem, context)) is None:
        return None
    terms = norm.read("x", "dy", "scale", "mean", "invstd", "y")
    x, dz, share = terms["x"], terms["dy"], 1 / rules.norm_samples(problem.x.shape, problem.mode)
    if problem.activation:
        dz = norm.write("dz", pointwise("relu_bwd", terms["y"], dz))
    difference = x - (terms.get("mean") or total(x) * share)
    if (inverse := terms.get("invstd")) is None:
        inverse = pointwise("rsqrt", total(difference * difference) * share + problem.epsilon)
    normal = difference * inverse
    dbias = norm.write("dbias", total(dz))
    dscale = norm.write("dscale", total(dz * normal))
    norm.write("dx", (dz - dbias * share - normal * (dscale * share)) * (inverse * terms["scale"]))
    return norm.program()


# --- legacy calls ------------------------------------------------------------------------------------------

# Indices among the arguments of cudnnBatchNormalizationForwardTrainingEx, without the handle.
_ALPHA, _BETA, _Y, _WORKSPACE, _RESERVE = 2, 3, 9, 20, 22
_GRADIENT_WORKSPACE = -4  # index among the arguments of cudnnBatchNormalizationBackwardEx


def training_plan(
    problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode, fused: bool = False
) -> FunctionPlan | None:
    """Return ``cudnnBatchNormalizationForwardTrainingEx``, and further calls for operations it cannot fuse.

    The reserve space of the call is treated as workspace, because the gradient recomputes the mask of the
    activation from y. Alpha and beta scale the last of the operations.
    """
    z, y, ops = specs.get("z"), specs["y"], BatchNormOps.BN
    if fused:
        if not problem.activation:
            return None
        ops = BatchNormOps.BN_ADD_ACTIVATION if z else BatchNormOps.BN_ACTIVATION
    of_z = list(specs).index("z") if z else 0
    relu = ActivationDescriptor.cached(ActivationSpec("relu")) if problem.activation else None
    scalar = scalar_type(DTYPES[y.dtype].accumulate)
    # Later calls must not be rejected, because the running statistics are already updated then.
    separate = _collapsed(*([] if fused else [y, z] if z else [y] if relu else []))
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
        x_, Slot("x"), z_, Slot("z") if own_z else None, y_, Slot("y"),
        scale_, Slot("scale"), Slot("bias"), momentum, Slot("running_mean"), Slot("running_var"),
        epsilon, Slot("mean"), Slot("invstd"),
        own_relu, None, nbytes, None, reserved,
    ]  # fmt: skip
    template = ArgumentTemplate(arguments, specs)
    reserve, workspace = program.align_after(nbytes, reserved)
    held = 0
    if relu and problem.scaled:
        held, workspace = program.append(workspace, y)

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
        if not separate:
            return
        whole, *added = separate
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
    about += "; z and activation by separate calls" if separate else ""
    return FunctionPlan(about, run, workspace)


def gradient_plan(
    problem: NormGradient, context: Context, specs: Specs, mode: BatchNormMode, extended: bool = False
) -> FunctionPlan:
    """Return ``cudnnBatchNormalizationBackward``, or the ``Ex`` variant with a workspace if ``extended``."""
    # With a fused activation, ``cudnnActivationBackward`` runs first and computes dz. Modes that need reserve
    # space of the forward pass are rejected.
    relu = ActivationDescriptor.cached(ActivationSpec("relu")) if problem.activation else None
    names, activated = list(specs), ("y", "dy", "dz") if relu else ()
    separate = _collapsed(*(specs[name] for name in activated))
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
        x, Slot("x"), *null, dy, Slot(gradient), *null, dx, Slot("dx"), scale, Slot("scale"),
        *no_bias, Slot("dscale"), Slot("dbias"), epsilon, Slot("mean"), Slot("invstd"), *end,
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
        if separate:
            y, dy, dz = zip(separate, (pointers[place] for place in places), strict=True)
            context.library.cudnnActivationBackward(
                context.handle, relu, scalar(1.0), *y, *dy, *y, scalar(0.0), *dz
            )
        getattr(context.library, name)(context.handle, *arguments)

    before = "cudnnActivationBackward, " if separate else ""
    return FunctionPlan(f"{before}{name}, {_label(mode)}", run, nbytes)


def inference_plan(
    problem: NormInference, _: Context, specs: Specs, mode: BatchNormMode
) -> FunctionPlan | None:
    """Return ``cudnnBatchNormalizationForwardInference``, which takes no parameters in half precision."""
    if problem.scale.dtype in HALF:
        return None
    x, y, parameters = (TensorDescriptor.cached(specs[name]) for name in ("x", "y", "scale"))
    slots = map(Slot, ("scale", "bias", "mean", "var"))
    arguments = [x, Slot("x"), y, Slot("y"), parameters, *slots, ctypes.c_double(problem.epsilon)]
    template, scalar = ArgumentTemplate(arguments, specs), scalar_type(DTYPES[problem.x.dtype].accumulate)

    def run(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        context.library.cudnnBatchNormalizationForwardInference(
            context.handle, mode, scalar(alpha), scalar(beta), *template.filled(pointers)
        )

    return FunctionPlan(f"cudnnBatchNormalizationForwardInference, {_label(mode)}", run)


def _label(member: Any) -> str:
    return str(member.name).lower().replace("_", " ")


def _collapsed(*specs: TensorSpec) -> list[TensorDescriptor]:
    """Return descriptors of element-wise operands, collapsed into one axis."""
    # cuDNN supports this view for every order of axes, and it is fast with channels last.
    if specs and specs[0].size <= INT_MAX:
        specs = tuple(collapse(specs, [(), (), (), range(len(specs[0].shape))]))
    return [TensorDescriptor.cached(spec) for spec in specs]


# --- plans -------------------------------------------------------------------------------------------------

Form = Callable[[Any, BatchNormMode], Specs | None]
"""Function of a problem and a cuDNN mode. It returns descriptor specs by tensor name, or None if the mode
computes a different result."""

_PER_ACTIVATION, _SPATIAL, _PERSISTENT = BatchNormMode

# Maximum batch size of a training step and of its gradient, and of an inference.
_LIMITS = {_PER_ACTIVATION: 131_070, _SPATIAL: 880_801, _PERSISTENT: 880_801}
_INFERENCE_LIMITS = dict.fromkeys(BatchNormMode, 65_535)


def _empty(problem: NormTraining | NormGradient, _: Context) -> Plan | None:
    """Return a plan for an empty batch: means are NaN, sums are 0, and running statistics stay."""
    if problem.x.size:
        return None
    value = float("nan") if isinstance(problem, NormTraining) else 0.0
    first = len(tensors_of(problem)) - len(results_of(problem))
    fills = [fill_plan(spec, value) for spec in results_of(problem)[1:3]]
    return chained([], [Step(fill, (first + place,)) for place, fill in enumerate(fills, 1)])


def _aligned(
    plan: Callable[..., Plan | None], limits: dict[BatchNormMode, int], *rows: tuple[Form, BatchNormMode]
) -> tuple[Implementation, ...]:
    def make(form: Form, mode: BatchNormMode, problem: Any, context: Context) -> Plan | None:
        specs = form(problem, mode)
        if not specs or specs["x"].shape[0] > limits[mode]:
            return None
        return plan(problem, context, specs, mode)

    return tuple(Implementation(partial(make, *row), aligned=True) for row in rows)


# --- views with the four or five axes that cuDNN supports ---------------------------------------------------


def nd_layout(problem: Any, mode: BatchNormMode) -> Specs | None:
    """Keep the axes: append axes of length 1 up to four, and collapse the last two of six."""
    if (problem.mode == "per_activation") != (mode == BatchNormMode.PER_ACTIVATION):
        return None
    specs, rank = _tensors(problem), len(problem.x.shape)
    if rank > 5:
        made = collapse(list(specs.values()), [(0,), (1,), (2,), (3,), (4, 5)])
    else:
        ones = (1,) * (4 - rank)
        made = images(*(TensorSpec(s.shape + ones, s.strides + ones, s.dtype) for s in specs.values()))
    native = _native(specs, made)
    if problem.mode == "per_activation":  # cuDNN reads parameters in C order, so the data must match
        _check(all("nchw" in spec.layouts for spec in native.values()), "not all operands are in C order")
    return native


def pixels_layout(problem: Any, mode: BatchNormMode) -> Specs | None:
    """View as (1, C, samples, 1) with channels last: the samples become pixels of one image.

    The parameter axes must be innermost.
    """
    if mode == BatchNormMode.PER_ACTIVATION:
        return None
    specs, samples = _tensors(problem), rules.norm_axes(problem.x.shape, problem.mode)
    channels = [axis for axis in range(len(problem.x.shape)) if axis not in samples]
    _check(problem.x.size <= INT_MAX, f"x has {problem.x.size:,} elements, more than a stride can hold")
    return _native(specs, collapse(list(specs.values()), [(), channels, samples, ()]))


def _tensors(problem: Any) -> Specs:
    """Return all tensors by name, with the rank of x for parameters."""
    shape = rules.norm_parameter_shape(problem.x.shape, problem.mode)
    specs = tensors_of(problem)
    for name, spec in specs.items():
        if name not in _DATA and spec.shape != shape:  # (C,)
            specs[name] = TensorSpec(shape, spec.strides * len(shape), spec.dtype)
    return specs


def _native(specs: Specs, made: Sequence[TensorSpec]) -> Specs:
    """Return descriptor specs by name; reject layouts without a fast kernel, as a copy costs less."""
    # Parameters are described as ``cudnnDeriveBNTensorDescriptor`` describes them.
    native = dict(zip(specs, made, strict=True))
    data = [spec for name, spec in native.items() if name in _DATA]
    alike = any(all(layout in spec.layouts for spec in data) for layout in LAYOUTS)
    _check(alike, "the data are not all contiguous in one layout")
    for name, spec in native.items():
        if name not in _DATA:
            _check("nchw" in spec.layouts, f"{name} is not contiguous in the order of x: {specs[name]}")
            native[name] = TensorSpec.packed(spec.shape, spec.dtype)
    return native


def _check(fits: bool, reason: str) -> None:
    if not fits:
        raise NotSupportedError(reason)


# --- tables ------------------------------------------------------------------------------------------------

_FASTEST = (nd_layout, _PERSISTENT)
_STEPS = (
    _FASTEST,
    (nd_layout, _PER_ACTIVATION),
    (nd_layout, _SPATIAL),
    (pixels_layout, _PERSISTENT),
    (pixels_layout, _SPATIAL),
)

TRAINING = (
    Implementation(_empty),
    *_aligned(partial(training_plan, fused=True), _LIMITS, _FASTEST),
    *_aligned(training_plan, _LIMITS, *_STEPS),
    by_engines(training_by_formulas),
)

GRADIENT = (
    Implementation(_empty),
    *_aligned(partial(gradient_plan, extended=True), _LIMITS, _FASTEST),
    *_aligned(gradient_plan, _LIMITS, *_STEPS),
    by_engines(gradient_by_formulas),
)

_INFERENCE_CALLS = _aligned(
    inference_plan,
    _INFERENCE_LIMITS,
    (nd_layout, _SPATIAL),
    (nd_layout, _PER_ACTIVATION),
    (nd_layout, _PERSISTENT),
    (pixels_layout, _SPATIAL),
)

INFERENCE = (
    *_INFERENCE_CALLS,
    by_engines(inference_by_formulas),
    by_engines(
        lambda problem, ctx: inference_by_formulas(problem, ctx) if problem.scale.dtype in HALF else None, ""
    ),
    *[one._replace(make=with_wide(("scale", "bias", "mean", "var"), one.make)) for one in _INFERENCE_CALLS],
)
