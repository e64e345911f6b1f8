"""Convolutions as values, and the rules of their shapes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..dtypes import as_dtype
from .arguments import choice, per_axis
from .specs import Shape, TensorSpec, check_shape, nearest_layout

Pairs = tuple[tuple[int, int], ...]

MODES = ("cross_correlation", "convolution")
PADDINGS = ("valid", "half", "full")
CONV_DTYPES = ("float16", "bfloat16", "float32", "float64")


class ConvProblem(NamedTuple):
    """One convolution: what cuDNN must be asked, and nothing of how.

    ``x``, ``w`` and ``y`` are the three tensors in the roles they have in the forward direction.
    ``tensor_cores`` says whether products may be taken at less than the precision of ``compute``.
    """

    direction: str
    x: TensorSpec
    w: TensorSpec
    y: TensorSpec
    padding: Pairs
    stride: Shape
    dilation: Shape
    groups: int
    mode: str
    compute: str
    tensor_cores: bool

    def __str__(self) -> str:
        return (
            f"{self.direction} convolution: x {self.x}, w {self.w}, y {self.y}, padding {self.padding}, "
            f"stride {self.stride}, dilation {self.dilation}, groups {self.groups}, mode {self.mode}, "
            f"computed in {self.compute}{' on tensor cores' if self.tensor_cores else ''}"
        )


def conv_output_shape(
    x_shape: Iterable[int],
    w_shape: Iterable[int],
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
) -> Shape:
    """Shape of ``conv(x, w)``, without a device.

    Parameters
    ----------
    x_shape : (N, C, *spatial), with 1 to 3 spatial axes
    w_shape : (K, C / groups, *window)
    padding, stride, dilation, groups, mode
        As in :func:`cudnn_ct.conv`.

    Returns
    -------
    tuple of int
        (N, K, *out), where each ``out = (n + before + after - ((k - 1) * dilation + 1)) // stride + 1``.

    Raises
    ------
    ValueError
        The shapes do not fit each other, or an output axis would have no element.

    Notes
    -----
    The formula is that of ``cudnnGetConvolutionNdForwardOutputDim``, which the tests hold it against.

    Examples
    --------
    >>> conv_output_shape((1, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2)
    (1, 64, 112, 112)
    """
    x, w = check_shape(x_shape, "x_shape"), check_shape(w_shape, "w_shape")
    _check_filter_fits(x, w, groups)
    axes = len(x) - 2
    strides, dilations = per_axis(stride, axes, "stride", 1), per_axis(dilation, axes, "dilation", 1)
    choice(mode, MODES, "mode")
    pairs = pad_pairs(padding, w[2:], dilations)
    return _output_shape(x, w, pairs, strides, dilations)


def conv_problem(
    x: TensorSpec,
    w: TensorSpec,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    precision: str | None = None,
    allow_tf32: bool = True,
    out: TensorSpec | None = None,
) -> ConvProblem:
    """Validate the arguments of a forward convolution and make the problem of it.

    The output has the layout of ``x``; where that is both layouts (one channel, one pixel), that of ``w``.

    Raises
    ------
    TypeError
        The dtypes differ, or cuDNN has no convolution for them.
    ValueError
        Shapes or parameters do not fit; the message has the numbers.
    """
    if x.dtype != w.dtype:
        raise TypeError(f"x is {x.dtype} and w is {w.dtype}; a convolution needs one dtype for both")
    if x.dtype not in CONV_DTYPES:
        raise TypeError(f"conv takes {', '.join(CONV_DTYPES)}, not {x.dtype}")
    shape = conv_output_shape(
        x.shape, w.shape, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode
    )
    y = TensorSpec.packed(shape, x.dtype, _output_layout(x, w))
    if out is not None:
        _check_out(out, y)
        y = out
    axes = len(shape) - 2
    dilations = per_axis(dilation, axes, "dilation", 1)
    compute, tensor_cores = resolve_precision(precision, x.dtype, allow_tf32)
    return ConvProblem(
        direction="forward",
        x=x,
        w=w,
        y=y,
        padding=pad_pairs(padding, w.shape[2:], dilations),
        stride=per_axis(stride, axes, "stride", 1),
        dilation=dilations,
        groups=operator.index(groups),
        mode=choice(mode, MODES, "mode"),
        compute=compute,
        tensor_cores=tensor_cores,
    )


def resolve_precision(precision: str | None, dtype: str, allow_tf32: bool) -> tuple[str, bool]:
    """Say for data of ``dtype`` which dtype to accumulate in, and whether tensor cores may round products.

    ``None`` is ``"as_input_f32"``. Half types may always use tensor cores, whose products of halves are
    exact, unless ``"float32"`` asks for plain IEEE arithmetic.
    """
    half = dtype in ("float16", "bfloat16")
    wide = as_dtype(dtype).accumulate
    rows = {
        "as_input_f32": (wide, half or (dtype == "float32" and allow_tf32)),
        "as_input": (dtype, half or (dtype == "float32" and allow_tf32)),
        "float32": ("float32", False),
        "tf32": ("float32", True),
        "float16": ("float16", True),
        "float64": ("float64", False),
    }
    allowed = {"tf32": ("float32",), "float16": ("float16",), "float32": ("float16", "bfloat16", "float32")}
    name = choice(precision or "as_input_f32", tuple(rows), "precision")
    if dtype not in allowed.get(name, CONV_DTYPES):
        raise ValueError(f"precision={name!r} is for {' or '.join(allowed[name])} data, not {dtype}")
    return rows[name]


def pad_pairs(padding: Any, window: Shape, dilation: Shape) -> Pairs:
    """Turn every way of writing ``padding`` into one pair (before, after) for each axis.

    >>> pad_pairs("half", (3, 4), (1, 1))
    ((1, 1), (2, 2))
    >>> pad_pairs(((0, 1), (2, 2)), (3, 3), (1, 1))
    ((0, 1), (2, 2))
    """
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        sizes = {
            "valid": [0 for _ in spans],
            "half": [span // 2 for span in spans],
            "full": [span - 1 for span in spans],
        }[choice(padding, PADDINGS, "padding")]
        return tuple((n, n) for n in sizes)
    if isinstance(padding, Sequence) and padding and all(isinstance(p, Sequence) for p in padding):
        if len(padding) != len(window) or any(len(pair) != 2 for pair in padding):
            raise ValueError(f"padding {padding!r}: expected {len(window)} pairs (before, after)")
        return tuple((p[0], p[1]) for p in (per_axis(pair, 2, "padding", 0) for pair in padding))
    return tuple((n, n) for n in per_axis(padding, len(window), "padding", 0))


def _check_filter_fits(x: Shape, w: Shape, groups: int) -> None:
    """Raise unless a filter bank of shape ``w`` can be moved over ``x``."""
    if not 3 <= len(x) <= 5:
        raise ValueError(f"x has shape {x}; expected (N, C, *spatial) with 1 to 3 spatial axes")
    if len(w) != len(x):
        raise ValueError(f"w has {len(w)} dimensions {w}; x of shape {x} needs a w of {len(x)}")
    try:
        groups = operator.index(groups)
    except TypeError:
        raise TypeError(f"groups must be an int, not {groups!r}") from None
    if groups < 1:
        raise ValueError(f"groups must be at least 1, got {groups}")
    if x[1] != w[1] * groups:
        raise ValueError(f"x has {x[1]} channels; w expects {w[1]} x groups {groups} = {w[1] * groups}")
    if w[0] % groups:
        raise ValueError(f"w has {w[0]} filters, which {groups} groups do not divide")
    if 0 in w[2:]:
        raise ValueError(f"w has shape {w}; every axis of the window needs at least one element")


def _output_shape(x: Shape, w: Shape, padding: Pairs, stride: Shape, dilation: Shape) -> Shape:
    spatial = []
    for axis, (n, k, (before, after), s, d) in enumerate(
        zip(x[2:], w[2:], padding, stride, dilation, strict=True)
    ):
        padded, span = n + before + after, (k - 1) * d + 1
        if padded < span:
            raise ValueError(
                f"the output would be empty along spatial axis {axis}: the input has {n} + padding "
                f"{before + after} = {padded}, the window spans ({k} - 1) x dilation {d} + 1 = {span}"
            )
        spatial.append((padded - span) // s + 1)
    return check_shape((x[0], w[0], *spatial), "output shape")


def _output_layout(x: TensorSpec, w: TensorSpec) -> str:
    common = [layout for layout in x.layouts if layout in w.layouts]
    return (common or list(x.layouts) or [nearest_layout(x)])[0]


def _check_out(out: TensorSpec, y: TensorSpec) -> None:
    if out.shape != y.shape:
        raise ValueError(f"out has shape {out.shape}; the result has {y.shape}")
    if out.dtype != y.dtype:
        raise TypeError(f"out is {out.dtype}; the result is {y.dtype}")
