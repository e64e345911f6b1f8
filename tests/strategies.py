"""Hypothesis strategies that all tiers share: convolutions as values, and operands made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.conv import conv_output_shape
from cudnn_ct.shapes.specs import LAYOUTS, packed_strides

VIEWS = ("packed", "every_other_image", "padded_rows", "transposed")
"""Views of an operand: contiguous; every second image of a batch; rows with a gap behind them; the last two
axes exchanged."""

SCALES = (1, 0, -2, 0.5)

# Filters have at most 28 weights of -1 or 1, inputs are at most 2, what `out` holds is at most 4: so every
# partial sum is within 56, and alpha * sum + beta * out within 120 in steps of a half. Every dtype holds that
# exactly, bfloat16 with its 8 significant bits included, in any order of adding and wherever it is rounded.
_MOST_WEIGHTS = 28
_LARGEST_INPUT = 2


@dataclass(frozen=True)
class ConvCase:
    """One convolution to try. Each default is the simplest choice, and the repr leaves defaults out.

    The repr can be pasted: as ``@example(ConvCase(...))``, or into a session to get its ``operands()``.
    """

    batch: int = 1
    channels_per_group: int = 1
    filters_per_group: int = 1
    groups: int = 1
    size: tuple[int, ...] = (1,)
    window: tuple[int, ...] = (1,)
    padding: Any = 0
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    mode: str = "cross_correlation"
    dtype: str = "float32"
    x_layout: str = "nchw"
    w_layout: str = "nchw"
    out_layout: str = "nchw"
    x_view: str = "packed"
    w_view: str = "packed"
    out_view: str = "packed"
    alpha: float = 1
    beta: float = 0
    with_out: bool = False
    out_dtype: str = ""
    seed: int = field(default=0)

    def __repr__(self) -> str:
        told = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return f"ConvCase({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in told)})"

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.groups * self.channels_per_group, *self.size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.groups * self.filters_per_group, self.channels_per_group, *self.window)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return conv_output_shape(self.x_shape, self.w_shape, **self.geometry)

    @property
    def geometry(self) -> dict[str, Any]:
        """The keyword arguments that decide the shape."""
        return {
            "padding": self.padding,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
            "mode": self.mode,
        }

    @property
    def keywords(self) -> dict[str, Any]:
        """All keyword arguments of ``conv`` but ``out``."""
        return {**self.geometry, "alpha": self.alpha, "beta": self.beta}

    def operands(self, kind: str = "integers") -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Make x, w and out (None without ``with_out``) in their layouts and views.

        ``kind="integers"`` gives sparse small integers, whose convolution every dtype holds exactly;
        ``"floats"`` gives normal ones, ``"bytes"`` any that int8 has. Memory between the elements of a view
        is NaN, and so is all of ``out`` if ``beta`` is 0, so that reading anything else changes the result.
        The memory of an operand, one contiguous axis, is its ``.base``.
        """
        rng = np.random.default_rng(self.seed)
        draw = {"integers": _integers, "floats": _floats, "bytes": _bytes}[kind]
        x, w, out = draw(rng, self)
        dtype, written = as_dtype(self.dtype).numpy, as_dtype(self.out_dtype or self.dtype).numpy
        if self.beta == 0:
            out = np.full(self.y_shape, poison(written))
        return (
            lay_out(x.astype(dtype), self.x_layout, self.x_view),
            lay_out(w.astype(dtype), self.w_layout, self.w_view),
            lay_out(out.astype(written), self.out_layout, self.out_view) if self.with_out else None,
        )


def lay_out(values: np.ndarray, layout: str, view: str) -> np.ndarray:
    """Copy ``values`` into fresh memory of :func:`poison` with the strides of a layout and a view."""
    shape = values.shape
    strides = strides_in(shape, layout, view)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if values.size else 1
    memory = np.full(span, poison(values.dtype)).astype(values.dtype)
    array: np.ndarray = np.ndarray(
        shape, values.dtype, buffer=memory, strides=tuple(s * values.itemsize for s in strides)
    )
    array[...] = values
    return array


def poison(dtype: np.dtype[Any]) -> float:
    """What shows in a result that it is not part of: NaN, or where there is none, a number of its own."""
    return 77 if dtype.kind in "iu" else np.nan


def strides_in(shape: tuple[int, ...], layout: str, view: str) -> tuple[int, ...]:
    """Strides in elements of a ``view`` (of :data:`VIEWS`) of something packed in ``layout``."""
    if view == "every_other_image":
        packed = packed_strides(shape, layout)
        return (2 * packed[0], *packed[1:])
    if view == "padded_rows":
        return packed_strides((*shape[:-1], shape[-1] + 3), layout)
    if view == "transposed":
        packed = packed_strides((*shape[:-2], shape[-1], shape[-2]), layout)
        return (*packed[:-2], packed[-1], packed[-2])
    return packed_strides(shape, layout)


@st.composite
def conv_cases(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[str] = ("float32", "float64", "float16", "bfloat16"),
    ranks: Sequence[int] = (1, 2, 3),
    layouts: Sequence[str] = LAYOUTS,
    views: Sequence[str] = VIEWS,
    scales: Sequence[float] = SCALES,
    asymmetric: bool = True,
    batches: Sequence[int] = (*(1, 2, 3) * 4, 0),
    channels: Sequence[int] = (1, 2, 3, 4),
    out_dtypes: Sequence[str] = ("",),
) -> ConvCase:
    """Draw a valid convolution: at least one output along each spatial axis.

    Integers have no factors; results of another dtype than the operands' are asked for with an ``out``.

    The first of each list is the simplest and what shrinking goes to; plain numbers come before choices of
    memory, so that a failure that needs no strange strides is reported without them.
    """
    rank = draw(st.sampled_from(ranks))
    groups = draw(st.integers(1, 4))
    window = draw(_per_axis(rank, 1, 4 if rank < 3 else 3))
    dilation = draw(_int_or_tuple(rank, 1, 3))
    padding = draw(_paddings(rank, asymmetric))
    size = tuple(
        draw(st.integers(least, least + (7 if rank < 3 else 4)))
        for least in _smallest_sizes(window, dilation, padding)
    )
    out_dtype = draw(st.sampled_from(out_dtypes))
    whole = out_dtype == "int32"
    alpha = draw(st.sampled_from((1,) if whole else scales))
    beta = draw(st.sampled_from((0,) if whole else sorted(scales, key=bool)))
    return ConvCase(
        batch=draw(st.sampled_from(batches)),
        channels_per_group=draw(st.sampled_from(channels)),
        filters_per_group=draw(st.sampled_from(channels)),
        groups=groups,
        size=size,
        window=window,
        padding=padding,
        stride=draw(_int_or_tuple(rank, 1, 3)),
        dilation=dilation,
        mode=draw(st.sampled_from(("cross_correlation", "convolution"))),
        dtype=draw(st.sampled_from(dtypes)),
        x_layout=draw(st.sampled_from(layouts)),
        w_layout=draw(st.sampled_from(layouts)),
        out_layout=draw(st.sampled_from(layouts)),
        x_view=draw(st.sampled_from(views)),
        w_view=draw(st.sampled_from(views)),
        out_view=draw(st.sampled_from(views)),
        alpha=alpha,
        beta=beta,
        # beta multiplies out, and float32 sums of int8 are asked for by it
        with_out=draw(st.booleans()) or beta != 0 or out_dtype == "float32",
        out_dtype=out_dtype,
        seed=draw(st.integers(0, 99)),
    )


def _per_axis(rank: int, least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(least, most)] * rank)


def _int_or_tuple(rank: int, least: int, most: int) -> st.SearchStrategy[int | tuple[int, ...]]:
    return st.integers(least, most) | _per_axis(rank, least, most)


def _paddings(rank: int, asymmetric: bool) -> st.SearchStrategy[Any]:
    simple = _int_or_tuple(rank, 0, 3) | st.sampled_from(("valid", "half", "full"))
    pairs = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * rank)
    return simple | pairs if asymmetric else simple


def _smallest_sizes(window: tuple[int, ...], dilation: int | tuple[int, ...], padding: Any) -> list[int]:
    """Shortest axes that give an output; reckoned here and not by the package, whose rules are under test."""
    dilations = (dilation,) * len(window) if isinstance(dilation, int) else dilation
    least = []
    for axis, (k, d) in enumerate(zip(window, dilations, strict=True)):
        span = (k - 1) * d + 1
        named = {"valid": 0, "half": 2 * (span // 2), "full": 2 * (span - 1)}
        if isinstance(padding, str):
            around = named[padding]
        else:
            here = padding if isinstance(padding, int) else padding[axis]
            around = 2 * here if isinstance(here, int) else sum(here)
        least.append(max(1, span - around))
    return least


def _integers(rng: np.random.Generator, case: ConvCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = rng.integers(-_LARGEST_INPUT, _LARGEST_INPUT, size=case.x_shape, endpoint=True)
    w = rng.choice((-1, 1), size=case.w_shape)
    taps = prod(case.w_shape[1:])
    if taps > _MOST_WEIGHTS:
        order = rng.permuted(np.tile(np.arange(taps), (case.w_shape[0], 1)), axis=1)
        w = np.where(order.reshape(case.w_shape) < _MOST_WEIGHTS, w, 0)
    return x, w, rng.integers(-4, 4, size=case.y_shape, endpoint=True)


def _bytes(rng: np.random.Generator, case: ConvCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        rng.integers(-128, 127, size=case.x_shape, endpoint=True),
        rng.integers(-128, 127, size=case.w_shape, endpoint=True),
        rng.integers(-4, 4, size=case.y_shape, endpoint=True),
    )


def _floats(rng: np.random.Generator, case: ConvCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        rng.standard_normal(case.x_shape),
        rng.standard_normal(case.w_shape),
        rng.standard_normal(case.y_shape),
    )
