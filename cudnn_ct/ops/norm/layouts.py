"""Batch normalisations written with the four or five axes that cuDNN takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._bindings.enums import BatchNormMode
from ...descriptors import TensorDescriptor
from ...errors import NotSupportedError
from ...plans.axes import collapse, images
from ...plans.base import tensors_of
from ...shapes.norm import norm_axes, norm_parameter_shape
from ...shapes.specs import INT_MAX, LAYOUTS, TensorSpec

__all__ = ["Form", "Specs", "nd_layout", "per_activation_2d", "pixels_layout", "pointwise"]

Specs = dict[str, TensorSpec]

Form = Callable[[Any, BatchNormMode], Specs | None]
"""From a problem, and the mode that cuDNN is to compute it in, to specs for the descriptors of its tensors by
their names. None where the mode would give something else."""

_DATA = {"x", "y", "z", "dx", "dy", "dz"}


def nd_layout(problem: Any, mode: BatchNormMode) -> Specs | None:
    """The axes as they are: ones behind fewer than four, the last two of six as one."""
    if (problem.mode == "per_activation") != (mode == BatchNormMode.PER_ACTIVATION):
        return None
    specs, rank = _tensors(problem), len(problem.x.shape)
    if rank > 5:
        made = collapse(list(specs.values()), [(0,), (1,), (2,), (3,), (4, 5)])
    else:
        ones = (1,) * (4 - rank)
        made = images(*(TensorSpec(s.shape + ones, s.strides + ones, s.dtype) for s in specs.values()))
    native = _native(specs, made)
    if problem.mode == "per_activation":  # the parameters are in C order, and so must be what they are for
        _check(all("nchw" in spec.layouts for spec in native.values()), "not all operands are in C order")
    return native


def per_activation_2d(problem: Any, mode: BatchNormMode) -> Specs | None:
    """(samples, C, 1, 1) with a channel for each parameter: where the parameters are the quickest axes."""
    if mode != BatchNormMode.PER_ACTIVATION:
        return None
    specs, samples, channels = _matrix(problem)
    return _native(specs, collapse(list(specs.values()), [samples, channels]))


def pixels_layout(problem: Any, mode: BatchNormMode) -> Specs | None:
    """(1, C, samples, 1) with channels last, of the same: samples are the pixels of one image."""
    if mode == BatchNormMode.PER_ACTIVATION:
        return None
    specs, samples, channels = _matrix(problem)
    _check(problem.x.size <= INT_MAX, f"x has {problem.x.size:,} elements, more than a stride can be")
    return _native(specs, collapse(list(specs.values()), [(), channels, samples, ()]))


def pointwise(*specs: TensorSpec) -> list[TensorDescriptor]:
    """Descriptors of tensors that are worked on element by element: as one long axis.

    So no call refuses them for their order, and none is slow with channels last, as some are.
    """
    if specs and specs[0].size <= INT_MAX:
        specs = tuple(collapse(specs, [(), (), (), range(len(specs[0].shape))]))
    return [TensorDescriptor.cached(spec) for spec in specs]


def _matrix(problem: Any) -> tuple[Specs, Sequence[int], Sequence[int]]:
    """The tensors, the axes that a mean is over, and those that the parameters have."""
    samples = norm_axes(problem.x.shape, problem.mode)
    return _tensors(problem), samples, [a for a in range(len(problem.x.shape)) if a not in samples]


def _tensors(problem: Any) -> Specs:
    """All tensors by name, parameters with the axes of x."""
    shape = norm_parameter_shape(problem.x.shape, problem.mode)
    specs = tensors_of(problem)
    for name, spec in specs.items():
        if name not in _DATA and spec.shape != shape:  # (C,)
            specs[name] = TensorSpec(shape, spec.strides * len(shape), spec.dtype)
    return specs


def _native(specs: Specs, made: Sequence[TensorSpec]) -> Specs:
    """Specs for descriptors by name, where all lies as quick kernels need it: a copy costs less than others.

    Parameters are described as ``cudnnDeriveBNTensorDescriptor`` does it.
    """
    native = dict(zip(specs, made, strict=True))
    data = [spec for name, spec in native.items() if name in _DATA]
    alike = any(all(layout in spec.layouts for spec in data) for layout in LAYOUTS)
    _check(alike, "the data do not all lie in one layout without gaps")
    for name, spec in native.items():
        if name not in _DATA:
            _check("nchw" in spec.layouts, f"{name} has gaps, or another order than x: {specs[name]}")
            native[name] = TensorSpec.packed(spec.shape, spec.dtype)
    return native


def _check(fits: bool, reason: str) -> None:
    if not fits:
        raise NotSupportedError(reason)
