"""Layer, RMS and adaptive layer normalisation: their problems, and the shapes that they accept."""

from __future__ import annotations

from math import prod
from typing import Any, Generic, Literal, NamedTuple

from .arithmetic import check_dtype
from .checks import one_dtype, packed_result, result_specs, same_shape, swap_hint
from .norm import check_epsilon
from .specs import Outs, Shape, Specs, T, TensorSpec, problem_class

LayerNormMode = Literal["layer_norm", "rms_norm", "ada_layer_norm"]
DTYPES = ("float16", "bfloat16", "float32")  # cuDNN has no engine for float64

WITHOUT_STATISTICS = "training is not set"  # why a result has no statistics
WITHOUT_DBIAS = "bias_gradient is not set"  # why a gradient has no dbias

_NAMES = {
    "layer_norm": "layer normalisation",
    "rms_norm": "RMS normalisation",
    "ada_layer_norm": "adaptive layer normalisation",
}


class LayerNormResult(NamedTuple, Generic[T]):
    """Result of a layer normalisation, and the statistics of each row; None without ``training``.

    ``mean`` and ``invstd`` (``1 / sqrt(variance + epsilon)``) are float32, have the shape of x with
    normalised axes of length 1, and are inputs of the backward pass.
    """

    y: T
    mean: T | None
    invstd: T | None


class RMSNormResult(NamedTuple, Generic[T]):
    """Result of an RMS normalisation, and ``invrms`` of each row; None without ``training``.

    ``invrms`` (``1 / sqrt(mean(x ** 2) + epsilon)``) is float32, has the shape of x with normalised axes of
    length 1, and is an input of the backward pass.
    """

    y: T
    invrms: T | None


class LayerNormGradients(NamedTuple, Generic[T]):
    """Gradients of the input, the scale and the bias of a layer normalisation."""

    dx: T
    dscale: T
    dbias: T


class RMSNormGradients(NamedTuple, Generic[T]):
    """Gradients of the input, the scale and, if it was asked for, the bias of an RMS normalisation."""

    dx: T
    dscale: T
    dbias: T | None


class RowNormShape(NamedTuple):
    """x as ``samples`` of ``rows`` of ``columns`` elements; each row is normalised."""

    samples: int  # each has a scale and a bias; one unless the normalisation is adaptive
    rows: int
    columns: int
    statistics: Shape  # the shape of the mean

    def data(self, array: Any) -> Any:
        """Return an array with the shape of x as (samples, rows, columns)."""
        return array.reshape(self.samples, self.rows, self.columns)

    def parameter(self, array: Any) -> Any:
        """Return an array with the shape of the scale as (samples, 1, columns)."""
        return array.reshape(self.samples, 1, self.columns)

    def statistic(self, array: Any) -> Any:
        """Return an array with the shape of the mean as (samples, rows, 1)."""
        return array.reshape(self.samples, self.rows, 1)


@problem_class(lambda self: _NAMES[self.mode], "y mean invstd", "mode")
class RowNorm(NamedTuple):
    """A normalisation of rows; ``mean`` and ``invstd`` are None if they are not written."""

    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec | None
    y: TensorSpec
    mean: TensorSpec | None
    invstd: TensorSpec | None
    mode: LayerNormMode
    epsilon: float
    aligned: bool = True

    @property
    def shape(self) -> RowNormShape:
        """The rows of x."""
        return row_norm_shape(self.mode, self.x.shape, self.scale.shape)


@problem_class(lambda self: f"gradient of {_NAMES[self.mode]}", "dx dscale dbias", "mode")
class RowNormGradient(NamedTuple):
    """The gradient of a normalisation of rows."""

    dy: TensorSpec
    x: TensorSpec
    scale: TensorSpec
    mean: TensorSpec | None
    invstd: TensorSpec
    dx: TensorSpec
    dscale: TensorSpec
    dbias: TensorSpec | None
    mode: LayerNormMode
    aligned: bool = True

    @property
    def shape(self) -> RowNormShape:
        """The rows of x."""
        return row_norm_shape(self.mode, self.x.shape, self.scale.shape)


def row_norm_shape(mode: LayerNormMode, x: Shape, scale: Shape) -> RowNormShape:
    """Return how x is divided into rows; the shape of the scale has the normalised axes.

    >>> row_norm_shape("layer_norm", (2, 5, 8), (8,))
    RowNormShape(samples=1, rows=10, columns=8, statistics=(2, 5, 1))
    >>> row_norm_shape("ada_layer_norm", (2, 5, 8), (2, 8))
    RowNormShape(samples=2, rows=5, columns=8, statistics=(2, 5, 1))
    """
    adaptive = mode == "ada_layer_norm"
    normalised = scale[1:] if adaptive else scale
    count = len(normalised)
    expected = (
        f"(samples, *axes) for x of shape (samples, ..., *axes): x has {x}"
        if adaptive
        else f"the shape of the last axes of x, which are normalised: x has {x}"
    )
    fits = 0 < count <= len(x) - adaptive and x[-count:] == normalised
    if not fits or (adaptive and scale[:1] != x[:1]):
        hint = swap_hint("x", "scale") if len(scale) > len(x) else ""
        raise ValueError(f"scale has a wrong shape: got {scale}, expected {expected}{hint}")
    columns = prod(normalised)
    if not columns:
        raise ValueError(f"the normalised axes of x have no elements: got x of shape {x}, scale of {scale}")
    samples = x[0] if adaptive else 1
    rows = prod(x[adaptive:-count])
    return RowNormShape(samples, rows, columns, (*x[:-count], *(1 for _ in normalised)))


def row_norm(mode: LayerNormMode, specs: Specs, outs: Outs, epsilon: Any, *, aligned: bool = True) -> RowNorm:
    """Validate a normalisation of x with scale, maybe bias; ``outs`` are y and written statistics."""
    x, scale, bias = specs["x"], specs["scale"], specs.get("bias")
    shape = _check_operands(mode, x, scale)
    if bias:
        _like("scale", scale, bias=bias)
    y = packed_result(x.shape, x.dtype, outs[0])  # in C order: rows are contiguous
    names = ("invrms",) if mode == "rms_norm" else ("mean", "invstd")
    statistics = result_specs(names, outs[1:], shape.statistics, TensorSpec.packed(shape.statistics))
    mean, invstd = (None, None, *statistics)[-2:]
    return RowNorm(x, scale, bias, y, mean, invstd, mode, check_epsilon(epsilon), aligned)


def row_norm_gradient(
    mode: LayerNormMode, specs: Specs, outs: Outs, *, aligned: bool = True
) -> RowNormGradient:
    """Validate the gradient of a normalisation; ``outs`` are dx, dscale and, unless it is omitted, dbias."""
    dy, x, scale, mean = specs["dy"], specs["x"], specs["scale"], specs.get("mean")
    name = "invrms" if mode == "rms_norm" else "invstd"
    invstd = specs[name]
    shape = _check_operands(mode, x, scale)
    _like("x", x, dy=dy)
    for statistic, spec in {"mean": mean, name: invstd}.items():
        if spec and spec.shape != shape.statistics:
            raise ValueError(
                f"{statistic} has a wrong shape: got {spec.shape}, expected {shape.statistics} for x of "
                f"shape {x.shape} and scale of {scale.shape}"
            )
        if spec:
            check_dtype(statistic, spec, ("float32",))
    dx = packed_result(x.shape, x.dtype, outs[0])
    like = TensorSpec.packed(scale.shape, scale.dtype)
    dscale, *rest = result_specs(("dscale", "dbias"), outs[1:], scale.shape, like)
    dbias = rest[0] if rest else None
    return RowNormGradient(dy, x, scale, mean, invstd, dx, dscale, dbias, mode, aligned)


def _check_operands(mode: LayerNormMode, x: TensorSpec, scale: TensorSpec) -> RowNormShape:
    one_dtype(_NAMES[mode], DTYPES, x=x.dtype)
    if scale.dtype not in (x.dtype, "float32"):
        expected = "float32" if x.dtype == "float32" else f"{x.dtype} or float32"
        raise TypeError(f"scale has a wrong dtype: got {scale.dtype}, expected {expected} for x of {x.dtype}")
    return row_norm_shape(mode, x.shape, scale.shape)


def _like(name: str, first: TensorSpec, **others: TensorSpec) -> None:
    for other, spec in others.items():
        same_shape(**{name: first.shape, other: spec.shape})
        if spec.dtype != first.dtype:
            raise TypeError(f"{other} has a wrong dtype: got {spec.dtype}, expected {first.dtype} as {name}")
