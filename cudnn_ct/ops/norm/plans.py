"""Ordered implementations of batch normalisation, fastest first.

The persistent modes were faster in all training steps measured, by a factor of 2 in C order and 50 with
channels last. If the parameter axes are innermost, a sample is a row of activations or a pixel of one image.
One mode can then replace another, which avoids the batch limits of single modes.

The limits are checked here and not left to cuDNN: above them, version 9.19 updates the running statistics
before it rejects the call, or returns an internal error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..._bindings.enums import BatchNormMode
from ...context import Context
from ...plans.base import Plan, tensors_of
from ...plans.chain import ChainPlan, Step
from ...plans.elementwise import fill_plan
from ...shapes.norm import NormGradient, NormTraining
from .._fallback import Implementation
from .layouts import Form, Specs, nd_layout, pixels_layout
from .legacy import GradientPlan, InferencePlan, TrainingPlan

__all__ = ["GRADIENT", "INFERENCE", "TRAINING"]

_PER_ACTIVATION, _SPATIAL, _PERSISTENT = BatchNormMode

# Maximum batch size of a training step and of its gradient, and of an inference.
_LIMITS = {_PER_ACTIVATION: 131_070, _SPATIAL: 880_801, _PERSISTENT: 880_801}
_INFERENCE_LIMITS = dict.fromkeys(BatchNormMode, 65_535)


def _empty(problem: NormTraining | NormGradient, _: Context) -> Plan | None:
    """Return a plan for an empty batch: means are NaN, sums are 0, and running statistics stay."""
    if problem.x.size:
        return None
    value = float("nan") if isinstance(problem, NormTraining) else 0.0
    first = len(tensors_of(problem)) - len(problem.results)
    fills = [fill_plan(spec, value) for spec in problem.results[1:3]]
    return ChainPlan([], [Step(fill, (first + place,)) for place, fill in enumerate(fills, 1)])


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
    return TrainingPlan(problem, context, specs, mode, fused=True) if problem.activation else None


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
    *_aligned(TrainingPlan, _LIMITS, *_STEPS),
)

GRADIENT = (
    Implementation(_empty),
    *_aligned(partial(GradientPlan, extended=True), _LIMITS, _FASTEST),
    *_aligned(GradientPlan, _LIMITS, *_STEPS),
)

INFERENCE = _aligned(
    InferencePlan,
    _INFERENCE_LIMITS,
    (nd_layout, _SPATIAL),
    (nd_layout, _PER_ACTIVATION),
    (nd_layout, _PERSISTENT),
    (pixels_layout, _SPATIAL),
)
