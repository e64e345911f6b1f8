"""Calls of layers as values that all tiers share, and what must hold of them wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from tests.strategies import SCALES, VIEWS, Place, in_memory_of, lay_out

ACTIVATIONS = ("relu", "identity", "clipped_relu", "sigmoid", "tanh", "elu", "swish")
FLOATS = ("float32", "float64", "float16", "bfloat16")

# Largest error of a result over the largest of its elements: one rounding, and a few of a sum.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-12}


class Tensor(NamedTuple):
    """An array to make: what it holds, and how it lies in memory that is NaN between its elements.

    ``values`` are small "integers", any "bytes", normal "floats", "distinct" integers, "positive" floats, or
    an array.
    """

    shape: tuple[int, ...]
    dtype: str
    values: Any = "integers"
    layout: str = "nchw"
    view: str = "packed"
    seed: int = 0

    def array(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        if isinstance(self.values, np.ndarray):
            values = self.values
        else:
            values = {
                "integers": lambda: rng.integers(-4, 5, self.shape),
                "bytes": lambda: rng.integers(-128, 128, self.shape),
                "floats": lambda: rng.standard_normal(self.shape),
                "distinct": lambda: rng.permutation(int(np.prod(self.shape))).reshape(self.shape),
                "positive": lambda: rng.uniform(0.5, 2, self.shape),
                "nan": lambda: np.full(self.shape, np.nan),
            }[self.values]()
        dtype = as_dtype(self.dtype).numpy
        return lay_out(np.asarray(values, dtype), self.layout, self.view)


@dataclass(frozen=True)
class LayerCase:
    """One call of an operation of ``ct``, and of its reference.

    ``exact`` says that results are integers that every dtype holds; ``outs`` are keywords that take arrays.
    ``terms`` tells of results by name how large what they are sums of is, where that may be much more.
    ``more`` is memory for the results after the first, None for new memory.
    """

    operation: str
    operands: tuple[Tensor | None, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    outs: dict[str, Tensor] = field(default_factory=dict)
    exact: bool = False
    terms: dict[str, float] = field(default_factory=dict)
    more: tuple[Tensor | None, ...] = ()


def check_layer(
    case: LayerCase, place: Place, tolerance: float | None = None, **closer: float | None
) -> None:
    """An operation of ``ct`` gives what ``ct.reference`` gives: exactly for small integers, else nearly.

    ``tolerance`` replaces those of :data:`TOLERANCE` that are smaller; ``closer`` is for results by name.
    """
    inputs = [None if one is None else one.array() for one in case.operands]
    outs = {name: one.array() for name, one in case.outs.items()}
    copies = {name: array.copy() for name, array in outs.items()}
    further = tuple(one and one.array() for one in case.more)
    every = {"out": (copies.get("out"), *further)} if further else {}
    expected = getattr(ct.reference, case.operation)(*inputs, **case.keywords, **copies | every)
    for got, memory in zip(several(expected)[1:], further, strict=False):
        assert memory is None or got is memory
    placed = {name: place(array) for name, array in outs.items()}
    devices = [None if array is None else place(array) for array in inputs]
    given = (placed.get("out"), *(one and place(one.array()) for one in case.more))
    every = {"out": given} if further else {}
    result = getattr(ct, case.operation)(*devices, **case.keywords, **placed | every)
    for got, memory in zip(several(result), given, strict=False):
        assert memory is None or in_memory_of(got, memory)
    names = getattr(expected, "_fields", ("out",) * len(several(expected)))
    for name, got, wanted in zip(names, several(result), several(expected), strict=True):
        own = closer.get(name, tolerance)
        compare(got, wanted, exact=case.exact, tolerance=own, terms=case.terms.get(name, 0.0))
    for name, array in placed.items():  # also those that are written in place
        terms = case.terms.get(names[0] if name == "out" else name, 0.0)
        compare(array, copies[name], exact=case.exact, tolerance=tolerance, terms=terms)


def several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def compare(
    got: Any, wanted: Any, *, exact: bool = False, tolerance: float | None = None, terms: float = 0.0
) -> None:
    """Hold an array on the device against one on the host, which may both be None.

    ``tolerance`` replaces that of the dtype in :data:`TOLERANCE` if it is larger.
    Sums of ``terms`` are rounded in the dtype that they are computed in, however small they are.
    """
    if wanted is None:
        assert got is None
        return
    array = ct.asarray(got).numpy()
    assert array.shape == wanted.shape
    assert array.dtype == wanted.dtype
    ours, theirs = array.astype(np.float64), wanted.astype(np.float64)
    if exact or wanted.dtype.kind in "iu":
        np.testing.assert_array_equal(ours, theirs)
        return
    finite = theirs[np.isfinite(theirs)]
    scale = max(np.abs(finite).max(initial=0), 1)
    dtype = as_dtype(wanted.dtype)
    largest = max(TOLERANCE[dtype.name], tolerance or 0)
    rounded = TOLERANCE[dtype.accumulate] * terms if terms else 0.0
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=largest * scale + rounded)


# --- drawing -----------------------------------------------------------------------------------------------


def lying(draw: st.DrawFn, shape: Sequence[int], dtype: str, values: Any = "integers") -> Tensor:
    """A tensor of a shape, in some layout and view."""
    images, rank = 3 <= len(shape) <= 5, len(shape)
    layout = draw(st.sampled_from(("nchw", "nhwc"))) if images else "nchw"
    views = VIEWS if rank >= 2 else VIEWS[: rank + 1]  # one axis may have a stride, too
    view = draw(st.sampled_from(views)) if dtype != "int8" else "packed"
    return Tensor(tuple(shape), dtype, values, layout, view, draw(st.integers(0, 99)))


def scales_and_out(
    draw: st.DrawFn, shape: Sequence[int], dtype: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """alpha and beta, and an out that is NaN where beta is 0."""
    alpha, beta = draw(st.sampled_from(SCALES)), draw(st.sampled_from(sorted(SCALES, key=bool)))
    if not (beta or draw(st.booleans())):
        return {"alpha": alpha}, {}
    out = lying(draw, shape, dtype, "integers" if beta else "nan")
    return {"alpha": alpha, "beta": beta}, {"out": out}


@st.composite
def pool_cases(draw: st.DrawFn, *, asymmetric: bool = False, dtypes: Sequence[str] = FLOATS) -> LayerCase:
    """A pooling, or its gradient, whose window is smaller than the padded image."""
    rank, dtype = draw(st.sampled_from((2, 1, 3))), draw(st.sampled_from(dtypes))
    window = draw(st.tuples(*[st.integers(1, 3)] * rank))
    pairs = [(draw(st.integers(0, k - 1)),) * 2 for k in window]
    if asymmetric:
        pairs = [(before, draw(st.integers(0, k - 1))) for (before, _), k in zip(pairs, window, strict=True)]
    size = [
        draw(st.integers(least, least + 5))
        for least in (max(1, k - sum(pair)) for k, pair in zip(window, pairs, strict=True))
    ]
    shape = (draw(st.sampled_from((2, 1, 3, 0))), draw(st.integers(1, 4)), *size)
    modes = ["max", "average_inc_pad", "average_exc_pad", "sum", "max_deterministic"]
    if any(before != after for before, after in pairs):
        modes.remove("average_exc_pad")
    geometry = {
        "window": window,
        "stride": draw(st.none() | st.tuples(*[st.integers(1, 3)] * rank)),
        "padding": tuple(pairs),
        "mode": draw(st.sampled_from(modes)),
    }
    largest = geometry["mode"].startswith("max")
    if draw(st.booleans()):
        # Where two elements are the largest, each of them may get the gradient: none are alike here.
        x = lying(draw, shape, dtype, "distinct" if np.prod(shape) < 128 else "floats")
        y = np.asarray(ct.reference.pool(x.array(), **geometry))
        dy = lying(draw, y.shape, dtype)
        scales, outs = scales_and_out(draw, shape, dtype)
        operands = (dy, x, lying(draw, y.shape, dtype, y))
        return LayerCase("pool_backward", operands, geometry | scales, outs, exact=largest)
    x = lying(draw, shape, dtype)
    y_shape = ct.pool_output_shape(shape, **{k: v for k, v in geometry.items() if k != "mode"})
    scales, outs = scales_and_out(draw, y_shape, dtype)
    return LayerCase("pool", (x,), geometry | scales, outs, exact=largest)


@st.composite
def spatial_cases(draw: st.DrawFn) -> LayerCase:
    """A grid, samples of an image at places in and around it, or gradients of either."""
    n, channels = draw(st.sampled_from((2, 1, 3, 0))), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(FLOATS))
    image = (n, channels, *draw(st.tuples(st.integers(2, 6), st.integers(2, 6))))
    size = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    operations = ("grid_sample", "grid_sample_backward", "affine_grid", "affine_grid_backward")
    operation = draw(st.sampled_from(operations))
    if operation == "affine_grid":
        theta = Tensor((n, 2, 3), dtype, "integers", seed=draw(st.integers(0, 99)))
        outs = _maybe_out(draw, (n, *size, 2), dtype)
        return LayerCase(operation, (theta,), {"shape": (n, channels, *size)}, outs)
    if operation == "affine_grid_backward":
        dgrid = Tensor((n, *size, 2), dtype, "floats", seed=draw(st.integers(0, 99)))
        return LayerCase(operation, (dgrid,), outs=_maybe_out(draw, (n, 2, 3), dtype))
    # Between the pixels, where slopes jump, no rounding decides on a side.
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    places = rng.integers(-2, 8, (n, *size, 2)) + rng.choice((0.25, 0.5, 0.75), (n, *size, 2))
    grid = 2 * places / (np.array([image[3], image[2]]) - 1) - 1
    operands = [lying(draw, image, dtype), Tensor(grid.shape, dtype, grid)]
    shape = (*image[:2], *size)
    if operation == "grid_sample":
        scales, outs = scales_and_out(draw, shape, dtype)
        return LayerCase(operation, tuple(operands), scales, outs)
    scales, outs = scales_and_out(draw, image, dtype)
    return LayerCase(operation, (lying(draw, shape, dtype), *operands), scales, outs)


def _maybe_out(draw: st.DrawFn, shape: Sequence[int], dtype: str) -> dict[str, Tensor]:
    """An out of NaN in any layout, or none."""
    return {"out": lying(draw, shape, dtype, "nan")} if draw(st.booleans()) else {}


@st.composite
def fused_cases(draw: st.DrawFn, activations: Sequence[str] = ACTIVATIONS) -> LayerCase:
    """A convolution with or without bias and residual, whose operands differ in layout and view."""
    axes, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(("float32", "float16", "float64")))
    size, groups = draw(st.integers(2, 5)), draw(st.integers(1, 2))
    filters, window = draw(st.sampled_from((4, 2, 6, groups))), draw(st.integers(1, 2))
    geometry = {"padding": draw(st.integers(0, 1)), "stride": draw(st.integers(1, 2)), "groups": groups}
    x, w = (2, 2 * groups, *[size] * axes), (filters, 2, *[window] * axes)
    y = ct.conv_output_shape(x, w, **geometry)
    coefficient = {"coefficient": 1.5}
    factors = dict(zip(("alpha1", "alpha2"), draw(st.sampled_from(((1, 1), (2, 0.5), (-1, 0)))), strict=True))
    keywords = {"activation": draw(st.sampled_from(activations)), **coefficient, **geometry, **factors}
    outs = {"residual": lying(draw, y, dtype)} if draw(st.booleans()) else {}
    outs |= _maybe_out(draw, y, dtype)
    b = lying(draw, w[:1], dtype) if draw(st.booleans()) else None
    operands = (lying(draw, x, dtype), lying(draw, w, dtype), b)
    return LayerCase("conv_bias_activation", operands, keywords, outs)


@st.composite
def scaled_conv_cases(draw: st.DrawFn, activations: Sequence[str] = ACTIVATIONS) -> LayerCase:
    """A convolution with scale and bias, with or without a residual, whose operands differ in layout."""
    axes, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(("float32", "float16", "bfloat16")))
    size, groups = draw(st.integers(2, 5)), draw(st.integers(1, 2))
    filters, window = draw(st.sampled_from((4, 2, 6, groups))), draw(st.integers(1, 2))
    padding = draw(st.sampled_from((0, 1, ((0, 1),) * axes)))
    geometry: dict[str, Any] = {"padding": padding, "stride": draw(st.integers(1, 2)), "groups": groups}
    x, w = (2, 2 * groups, *[size] * axes), (filters, 2, *[window] * axes)
    y = ct.conv_output_shape(x, w, **geometry)
    keywords = {"activation": draw(st.sampled_from(activations)), "coefficient": 1.5, **geometry}
    wide = draw(st.sampled_from((dtype, "float32")))
    operands = (lying(draw, x, dtype), lying(draw, w, dtype), *(lying(draw, w[:1], wide) for _ in range(2)))
    outs = {"residual": lying(draw, y, dtype)} if draw(st.booleans()) else {}
    return LayerCase("conv_scale_bias_activation", operands, keywords, outs | _maybe_out(draw, y, dtype))
