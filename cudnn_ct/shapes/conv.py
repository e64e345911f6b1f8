"""Convolution problems, and the shapes that convolutions accept and return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import starmap
from operator import ne
from typing import Any, NamedTuple, Never

from .._hints import UNSET, corrected, known_keywords
from ..typing import ConvMode, Layout, Padding, PerAxis
from . import checks
from .arithmetic import check_conv_dtypes, conv_result_dtype, resolve_precision
from .checks import as_choice, as_int, as_list, per_axis, result_spec
from .specs import Shape, TensorSpec, check_shape, common_layouts

Pairs = tuple[tuple[int, int], ...]

GEOMETRY = ("padding", "stride", "dilation", "groups")  # parameters that determine shapes
MODES: tuple[ConvMode, ...] = ("cross_correlation", "convolution")
PADDINGS = ("valid", "half", "full")
_OTHER_PADDINGS = f", pairs (before, after) of each axis, or one of {', '.join(PADDINGS)}"


class DirectionOperands(NamedTuple):
    """Operands of a direction in the order of the public functions, by forward role and parameter name."""

    operands: tuple[str, str, str]
    names: tuple[str, str, str]


ROLES = {
    "forward": DirectionOperands(("x", "w", "y"), ("x", "w", "y")),
    "backward_data": DirectionOperands(("y", "w", "x"), ("dy", "w", "dx")),
    "backward_filter": DirectionOperands(("y", "x", "w"), ("dy", "x", "dw")),
}


class ConvProblem(NamedTuple):
    """One convolution, as a cache key: tensors and parameters, without an algorithm."""

    direction: str
    x: TensorSpec  # ``x``, ``w`` and ``y`` have their roles in the forward direction
    w: TensorSpec
    y: TensorSpec
    padding: Pairs
    stride: Shape
    dilation: Shape
    groups: int
    mode: ConvMode
    compute: str
    tensor_cores: bool  # allows products of lower precision than ``compute``
    scaled: str = ""  # "alpha" if alpha is not 1, else "beta" if beta is not 0
    aligned: bool = True  # whether all operands are 16-byte aligned

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.result,)

    @property
    def result(self) -> TensorSpec:
        """The tensor that is written."""
        spec: TensorSpec = getattr(self, ROLES[self.direction].operands[-1])
        return spec

    @property
    def in_order(self) -> tuple[TensorSpec, ...]:
        """The tensors in the order of a run's pointers."""
        return tuple(getattr(self, role) for role in ROLES[self.direction].operands)

    @property
    def core(self) -> ConvProblem:
        """This problem; a fused convolution returns the convolution that it contains."""
        return self

    @property
    def common_layouts(self) -> tuple[Layout, ...]:
        """The layouts in which x, w and y are all contiguous."""
        return common_layouts(self.x, self.w, self.y)

    @property
    def asymmetric_padding(self) -> bool:
        """Whether padding differs between the two sides of an axis."""
        return any(starmap(ne, self.padding))

    def __str__(self) -> str:
        return (
            f"{self.direction} convolution: x {self.x}, w {self.w}, y {self.y}, padding {self.padding}, "
            f"stride {self.stride}, dilation {self.dilation}, groups {self.groups}, mode {self.mode}, "
            f"computed in {self.compute}{' on tensor cores' if self.tensor_cores else ''}"
            f"{f', scaled by {self.scaled}' if self.scaled else ''}"
            f"{'' if self.aligned else ', not aligned to 16 bytes'}"
        )


def written_as(spec: TensorSpec, problem: ConvProblem) -> Layout:
    """Return the layout in which a contiguous tensor is passed to engines."""
    # A tensor of both layouts gets the common layout, or the one with more engines.
    common = problem.common_layouts
    channels_last = problem.tensor_cores or problem.compute == "int32"
    layout: Layout = common[0] if len(common) == 1 else "nhwc" if channels_last else "nchw"
    return layout if layout in spec.layouts else spec.layouts[0]


@known_keywords
def conv_output_shape(
    x_shape: Iterable[int],
    w_shape: Iterable[int],
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    **unknown: Never,
) -> Shape:
    """Return the shape of ``conv(x, w)``, without a device.

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
        The shapes do not match, or an output axis would be empty.

    Notes
    -----
    The formula is that of ``cudnnGetConvolutionNdForwardOutputDim``; the tests compare the two.

    Examples
    --------
    >>> conv_output_shape((1, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2)
    (1, 64, 112, 112)
    """
    if more or unknown or x_shape is UNSET or w_shape is UNSET:
        return corrected(conv_output_shape, locals())
    return _geometry_and_result(x_shape, w_shape, padding, stride, dilation, groups, mode)[1]


def conv_problem(
    direction: str,
    first: TensorSpec,
    second: TensorSpec,
    *,
    shape: Any = None,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    precision: str | None = None,
    allow_tf32: bool = True,
    out: TensorSpec | None = None,
    scaled: str = "",
    aligned: bool = True,
) -> ConvProblem:
    """Validate the arguments of a convolution or of its gradient, and return the problem.

    ``direction`` is a key of :data:`ROLES`, which names ``first``, ``second`` and the result. ``shape`` is
    the shape of a gradient. The result is ``out`` or contiguous, in the layout of the image among the inputs.
    """
    roles = ROLES[direction]
    check_conv_dtypes(direction, dict(zip(roles.names, (first.dtype, second.dtype), strict=False)))
    specs = dict(zip(roles.operands, (first, second), strict=False))
    shapes = {role: spec.shape for role, spec in specs.items()}
    if direction != "forward":
        shapes[roles.operands[-1]] = check_shape(shape, f"{roles.operands[-1]}_shape")
    try:
        (pairs, strides, dilations), y_shape = _geometry_and_result(
            shapes["x"], shapes["w"], padding, stride, dilation, groups, mode
        )
        if shapes.setdefault("y", y_shape) != y_shape:
            raise ValueError(
                f"dy has shape {shapes['y']}; x of {shapes['x']} with w of {shapes['w']} and these "
                f"parameters gives {y_shape}{checks.image_hint('dy', shapes['y'], y_shape[1])}"
            )
    except ValueError as error:
        if direction == "forward":
            raise
        swapped = dict(zip(roles.operands, (second.shape, first.shape), strict=False))
        raise ValueError(
            f"{error}{checks.gradient_hint(roles.names, groups, **(shapes | swapped))}"
        ) from None
    image = specs["y"] if direction == "backward_data" else specs["x"]
    other = second if image is first else first
    dtype = conv_result_dtype(first.dtype, None if out is None else out.dtype, scaled)
    specs[roles.operands[-1]] = result_spec(shapes[roles.operands[-1]], image, other, out=out, dtype=dtype)
    compute, tensor_cores = resolve_precision(precision, first.dtype, allow_tf32)
    return ConvProblem(
        direction=direction,
        **specs,
        padding=pairs,
        stride=strides,
        dilation=dilations,
        groups=as_int(groups, "groups"),
        mode=as_choice(mode, MODES, "mode"),
        compute=compute,
        tensor_cores=tensor_cores,
        scaled=scaled,
        aligned=aligned,
    )


@known_keywords
def conv_transpose_output_shape(
    x_shape: Iterable[int],
    w_shape: Iterable[int],
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    output_padding: PerAxis = 0,
    **unknown: Never,
) -> Shape:
    """Return the shape of ``conv_transpose(x, w)``: an image whose convolution with w has the shape of x.

    Parameters
    ----------
    x_shape : (N, C, *spatial), with 1 to 3 spatial axes
    w_shape : (C, K / groups, *window)
    padding, stride, dilation, groups
        As in :func:`conv_output_shape`, for the convolution that maps the result to x.
    output_padding : int or tuple of int
        Amount added to the smallest of the possible sizes, if the stride allows more than one; less than the
        stride.

    Returns
    -------
    tuple of int
        (N, K, *out), each ``out = (n - 1) * stride - before - after + (k - 1) * dilation + 1 + extra``.

    Raises
    ------
    ValueError
        The shapes do not match, or an axis would be empty.

    Examples
    --------
    >>> conv_transpose_output_shape((1, 8, 4, 4), (8, 3, 3, 3), stride=2, padding=1, output_padding=1)
    (1, 3, 8, 8)
    """
    if more or unknown or x_shape is UNSET or w_shape is UNSET:
        return corrected(conv_transpose_output_shape, locals())
    x, w = check_shape(x_shape, "x_shape"), check_shape(w_shape, "w_shape")
    if not 3 <= len(x) <= 5 or len(w) != len(x):
        hint = checks.batch_hint("x", x, len(w)) if x[:1] == w[:1] else ""
        raise ValueError(f"x is {x} and w {w}; expected (N, C, *spatial) and (C, K / groups, *window){hint}")
    if x[1] != w[0]:
        hint = f"; pass w.transpose{(1, 0, *range(2, len(w)))} (permute in torch)" if x[1] == w[1] else ""
        if w[1] == x[0] and all(n <= k for n, k in zip(x[2:], w[2:], strict=True)):
            hint = checks.swap_hint("x", "w")
        hint = hint or checks.image_hint("x", x, w[0])
        raise ValueError(f"x has {x[1]} channels; w of shape {w} expects {w[0]}{hint}")
    pairs, strides, dilations = conv_geometry(w[2:], padding, stride, dilation)
    extras = per_axis(output_padding, len(strides), "output_padding", 0)
    if any(extra >= s for extra, s in zip(extras, strides, strict=True)):
        raise ValueError(f"output_padding {extras} must be less than the stride {strides}")
    sizes = [
        (n - 1) * s - sum(pair) + (k - 1) * d + 1 + extra
        for n, k, s, d, pair, extra in zip(x[2:], w[2:], strides, dilations, pairs, extras, strict=True)
    ]
    if min(sizes) < 1:
        raise ValueError(f"the result would have spatial shape {tuple(sizes)}; each axis needs an element")
    return check_shape((x[0], w[1] * as_int(groups, "groups"), *sizes), "result shape")


def _geometry_and_result(
    x_shape: Iterable[int],
    w_shape: Iterable[int],
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    mode: ConvMode,
) -> tuple[tuple[Pairs, Shape, Shape], Shape]:
    """Return padding, stride and dilation for each axis, and the shape of the result."""
    x, w = check_shape(x_shape, "x_shape"), check_shape(w_shape, "w_shape")
    _check_filter_fits(x, w, groups)
    as_choice(mode, MODES, "mode")
    geometry = conv_geometry(w[2:], padding, stride, dilation)
    return geometry, _output_shape(x, w, *geometry)


def conv_geometry(window: Shape, padding: Any, stride: Any, dilation: Any) -> tuple[Pairs, Shape, Shape]:
    """Return padding, stride and dilation, in any of their accepted forms, for each axis of a window."""
    strides = per_axis(stride, len(window), "stride", 1)
    dilations = per_axis(dilation, len(window), "dilation", 1)
    return pad_pairs(padding, window, dilations), strides, dilations


def pad_pairs(padding: Any, window: Shape, dilation: Shape) -> Pairs:
    """Return ``padding``, in any of its accepted forms, as one pair (before, after) per axis."""
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        size = {"valid": lambda _: 0, "half": lambda span: span // 2, "full": lambda span: span - 1}
        sizes = map(size[as_choice(padding, PADDINGS, "padding")], spans)
        return tuple((n, n) for n in sizes)
    padding = as_list(padding)
    if isinstance(padding, Sequence) and padding and all(isinstance(p, Sequence) for p in padding):
        if len(padding) != len(window) or any(len(pair) != 2 for pair in padding):
            raise ValueError(f"padding {padding!r}: expected {len(window)} pairs (before, after)")
        return tuple((p[0], p[1]) for p in (per_axis(pair, 2, "padding", 0) for pair in padding))
    return tuple((n, n) for n in per_axis(padding, len(window), "padding", 0, _OTHER_PADDINGS))


def _check_filter_fits(x: Shape, w: Shape, groups: int) -> None:
    """Raise unless a filter of shape ``w`` can be applied to ``x``."""
    if not 3 <= len(x) <= 5:
        hint = checks.batch_hint("x", x, len(w))
        raise ValueError(f"x has shape {x}; expected (N, C, *spatial) with 1 to 3 spatial axes{hint}")
    if len(w) != len(x):
        hint = checks.filter_hint(x, w, groups) if isinstance(groups, int) else ""
        raise ValueError(f"w has {len(w)} dimensions {w}; x of shape {x} needs a w of {len(x)}{hint}")
    groups = as_int(groups, "groups")
    if groups < 1:
        raise ValueError(f"groups must be at least 1: got {groups}")
    if x[1] != w[1] * groups:
        hint = checks.filter_hint(x, w, groups)
        raise ValueError(f"x has {x[1]} channels; w expects {w[1]} x groups {groups} = {w[1] * groups}{hint}")
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
                f"{checks.filter_hint(x, w, 1) if x[1] == w[1] else ''}"
            )
        spatial.append((padded - span) // s + 1)
    return check_shape((x[0], w[0], *spatial), "output shape")
