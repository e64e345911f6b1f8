"""Views of batch normalisation operands with the four or five axes that cuDNN supports."""

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

__all__ = ["Form", "Specs", "nd_layout", "pixels_layout", "pointwise"]

Specs = dict[str, TensorSpec]

Form = Callable[[Any, BatchNormMode], Specs | None]
"""Function of a problem and a cuDNN mode. It returns descriptor specs by tensor name, or None if the mode
computes a different result."""

_DATA = {"x", "y", "z", "dx", "dy", "dz"}


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
    specs, samples = _tensors(problem), norm_axes(problem.x.shape, problem.mode)
    channels = [axis for axis in range(len(problem.x.shape)) if axis not in samples]
    _check(problem.x.size <= INT_MAX, f"x has {problem.x.size:,} elements, more than a stride can hold")
    return _native(specs, collapse(list(specs.values()), [(), channels, samples, ()]))


def pointwise(*specs: TensorSpec) -> list[TensorDescriptor]:
    """Return descriptors of element-wise operands, collapsed into one axis.

    cuDNN supports this view for every order of axes, and it is fast with channels last.
    """
    if specs and specs[0].size <= INT_MAX:
        specs = tuple(collapse(specs, [(), (), (), range(len(specs[0].shape))]))
    return [TensorDescriptor.cached(spec) for spec in specs]


def _tensors(problem: Any) -> Specs:
    """Return all tensors by name, with the rank of x for parameters."""
    shape = norm_parameter_shape(problem.x.shape, problem.mode)
    specs = tensors_of(problem)
    for name, spec in specs.items():
        if name not in _DATA and spec.shape != shape:  # (C,)
            specs[name] = TensorSpec(shape, spec.strides * len(shape), spec.dtype)
    return specs


def _native(specs: Specs, made: Sequence[TensorSpec]) -> Specs:
    """Return descriptor specs by name; reject layouts without a fast kernel, as a copy costs less.

    Parameters are described as ``cudnnDeriveBNTensorDescriptor`` describes them.
    """
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
