"""Ordered implementations of batch normalisation, fastest first.

The persistent modes were faster in all training steps measured, by a factor of 2 in C order and 50 with
channels last. If the parameter axes are innermost, a sample is a row of activations or a pixel of one image.
One mode can then replace another, which avoids the batch limits of single modes.

The limits are checked here and not left to cuDNN: above them, version 9.19 updates the running statistics
before it rejects the call, or returns an internal error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._bindings.enums import BatchNormMode
from ...context import Context
from ...errors import NotSupportedError
from ...plans.axes import collapse, images
from ...plans.base import Plan, tensors_of
from ...plans.elementwise import fill_plan
from ...plans.program import Step, chained
from ...shapes import norm as rules
from ...shapes.norm import NormGradient, NormInference, NormTraining
from ...shapes.specs import INT_MAX, LAYOUTS, Specs, TensorSpec, results_of
from .._fallback import Implementation, by_engines
from .._formulas import Formulas, Matrix, Term, matrix_of, pointwise, total
from .legacy import gradient_plan, in_half_precision, inference_plan, training_plan

# --- batch normalisation by graphs alone, for a cuDNN that has no legacy calls -----------------------------

_DATA = {"x", "y", "z", "dx", "dy", "dz"}


class _Norm:
    """The tensors of a problem as terms by name, and the formulas of its results."""

    def __init__(
        self, problem: NormTraining | NormInference | NormGradient, matrix: Matrix, context: Context
    ) -> None:
        self._specs = tensors_of(problem)
        self._names = list(self._specs)
        self.formulas = Formulas(matrix, len(self._names), context)
        first = len(self._names) - len(results_of(problem))
        given = self._names[:first] + [name for name in self._names if name.startswith("running_")]
        self.terms = {
            name: self.formulas.tensor(
                self._names.index(name), self._specs[name].dtype, vector=name not in _DATA
            )
            for name in given
        }
        self.share = 1 / rules.norm_samples(problem.x.shape, problem.mode)

    def store(self, name: str, term: Term) -> Term:
        """Compute a result."""
        return self.formulas.store(term, self._names.index(name), self._specs[name].dtype)


def _norm(problem: NormTraining | NormInference | NormGradient, context: Context) -> _Norm | None:
    tensors = _tensors(problem)
    data = [tensors[name] for name in tensors if name in _DATA]
    matrix = matrix_of(data, [tensors[name] for name in tensors if name not in _DATA])
    # Matrices one behind another would have sums of each.
    return None if matrix is None or matrix.number > 1 else _Norm(problem, matrix, context)


def training_by_formulas(problem: NormTraining, context: Context) -> Plan | None:
    """Return a plan of a training step: the mean, the variance, the result and the running statistics."""
    if (norm := _norm(problem, context)) is None:
        return None
    x, share = norm.terms["x"], norm.share
    mean = norm.store("mean", total(x) * share)
    difference = x - mean
    variance = total(difference * difference) * share
    inverse = norm.store("invstd", pointwise("rsqrt", variance + problem.epsilon))
    y = difference * inverse * norm.terms["scale"] + norm.terms["bias"]
    y = y + norm.terms["z"] if problem.z else y
    norm.store("y", pointwise("relu_fwd", y) if problem.activation else y)
    if problem.running_mean:
        weight, unbiased = problem.momentum, 1 / (1 - share)
        for name, value in (("running_mean", mean * weight), ("running_var", variance * (weight * unbiased))):
            norm.store(name, norm.terms[name] * (1 - weight) + value)
    return norm.formulas.program()


def inference_by_formulas(problem: NormInference, context: Context) -> Plan | None:
    """Return a plan of a normalisation by given statistics."""
    if (norm := _norm(problem, context)) is None:
        return None
    x, scale, bias, mean, var = (norm.terms[name] for name in ("x", "scale", "bias", "mean", "var"))
    norm.store("y", (x - mean) * (pointwise("rsqrt", var + problem.epsilon) * scale) + bias)
    return norm.formulas.program()


def gradient_by_formulas(problem: NormGradient, context: Context) -> Plan | None:
    """Return a plan of the gradients, with the statistics of x if they are not given."""
    if (norm := _norm(problem, context)) is None:
        return None
    x, dz, share = norm.terms["x"], norm.terms["dy"], norm.share
    if problem.activation:
        dz = norm.store("dz", pointwise("relu_bwd", norm.terms["y"], dz))
    mean = norm.terms.get("mean") or total(x) * share
    difference = x - mean
    if (inverse := norm.terms.get("invstd")) is None:
        inverse = pointwise("rsqrt", total(difference * difference) * share + problem.epsilon)
    normal = difference * inverse
    dbias = norm.store("dbias", total(dz))
    dscale = norm.store("dscale", total(dz * normal))
    norm.store("dx", (dz - dbias * share - normal * (dscale * share)) * (inverse * norm.terms["scale"]))
    return norm.formulas.program()


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
    """Return an implementation for each layout and mode."""

    def make(form: Form, mode: BatchNormMode, problem: Any, context: Context) -> Plan | None:
        specs = form(problem, mode)
        if not specs or specs["x"].shape[0] > limits[mode]:
            return None
        return plan(problem, context, specs, mode)

    return tuple(Implementation(partial(make, *row), aligned=True) for row in rows)


def _fused(problem: NormTraining, context: Context, specs: Specs, mode: BatchNormMode) -> Plan | None:
    return training_plan(problem, context, specs, mode, fused=True) if problem.activation else None


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
    *_aligned(_fused, _LIMITS, _FASTEST),
    *_aligned(training_plan, _LIMITS, *_STEPS),
    by_engines(training_by_formulas),
)

GRADIENT = (
    Implementation(_empty),
    *_aligned(partial(gradient_plan, extended=True), _LIMITS, _FASTEST),
    *_aligned(gradient_plan, _LIMITS, *_STEPS),
    by_engines(gradient_by_formulas),
)

INFERENCE = (
    *_aligned(
        inference_plan,
        _INFERENCE_LIMITS,
        (nd_layout, _SPATIAL),
        (nd_layout, _PER_ACTIVATION),
        (nd_layout, _PERSISTENT),
        (pixels_layout, _SPATIAL),
    ),
    by_engines(inference_by_formulas),
    by_engines(
        lambda problem, ctx: inference_by_formulas(problem, ctx) if in_half_precision(problem) else None, ""
    ),
)
