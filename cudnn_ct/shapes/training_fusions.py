"""Convolutions fused with the parts of a batch normalisation, in both directions of training."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from ..dtypes import as_dtype
from .arithmetic import check_dtype
from .checks import as_float, as_int, cast_hint, result_specs
from .conv import ConvProblem
from .fused import ConvParameters
from .norm import check_epsilon
from .specs import Outs, Specs, T, TensorSpec, problem_class

STATISTICS_DTYPES = ("float16", "bfloat16", "float32")
GRADIENT_DTYPES = ("float16",)  # cuDNN 9.19 and 9.28 have no engine for others
EQ_DTYPES = ("float16", "float32")


class ConvStatisticsResult(NamedTuple, Generic[T]):
    """Result of a convolution, with the sums of its elements and of their squares for each channel."""

    y: T
    sums: T
    square_sums: T


class BatchNormFinalizeResult(NamedTuple, Generic[T]):
    """Statistics of a batch; ``y * eq_scale + eq_bias`` is the normalised, scaled and shifted y.

    ``mean`` and ``invstd`` are inputs of the backward pass, ``running_mean`` and ``running_var`` the updated
    running statistics.
    """

    eq_scale: T
    eq_bias: T
    mean: T
    invstd: T
    running_mean: T
    running_var: T


class ConvBatchNormGradients(NamedTuple, Generic[T]):
    """Gradients of a convolution's data before a relu, and of the batch normalisation before that.

    The gradient of the batch normalisation's input x is ``dz * eq_dz_scale + x * eq_x_scale + eq_bias``.
    """

    dz: T
    dscale: T
    dbias: T
    eq_dz_scale: T
    eq_x_scale: T
    eq_bias: T


@problem_class("convolution with statistics", "y sums square_sums", "unproven")
class StatisticsProblem(NamedTuple):
    """``y = conv(relu(x * scale + bias), w)`` and its sums; without scale and bias, that of x itself."""

    x: TensorSpec
    w: TensorSpec
    scale: TensorSpec | None
    bias: TensorSpec | None
    y: TensorSpec
    sums: TensorSpec
    square_sums: TensorSpec
    parameters: ConvParameters
    aligned: bool = True
    unproven: Any = True

    @property
    def core(self) -> ConvProblem:
        """The convolution, as of x itself."""
        return self.parameters.conv("forward", self.x, self.w, self.y, self.aligned)


@problem_class(
    "statistics of a batch normalisation", "eq_scale eq_bias mean invstd next_mean next_var", "unproven"
)
class BatchNormFinalize(NamedTuple):
    """The statistics of a batch of ``elements`` elements for each channel, from their sums."""

    sums: TensorSpec
    square_sums: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    running_mean: TensorSpec
    running_var: TensorSpec
    eq_scale: TensorSpec
    eq_bias: TensorSpec
    mean: TensorSpec
    invstd: TensorSpec
    next_mean: TensorSpec
    next_var: TensorSpec
    elements: int
    epsilon: float
    momentum: float
    aligned: bool = True
    unproven: Any = True


@problem_class(
    "gradient of a convolution's data, a relu and a batch normalisation",
    "dz dscale dbias eq_dz_scale eq_x_scale eq_bias",
    "unproven",
)
class DataGradient(NamedTuple):
    """The gradient of ``conv(relu(norm(x)), w)`` for norm(x), and the gradients of the normalisation."""

    dy: TensorSpec
    w: TensorSpec
    x: TensorSpec
    mean: TensorSpec
    invstd: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    dz: TensorSpec
    dscale: TensorSpec
    dbias: TensorSpec
    eq_dz_scale: TensorSpec
    eq_x_scale: TensorSpec
    eq_bias: TensorSpec
    parameters: ConvParameters
    aligned: bool = True
    unproven: Any = True

    @property
    def core(self) -> ConvProblem:
        """The gradient of the convolution."""
        return self.parameters.conv("backward_data", self.dz, self.w, self.dy, self.aligned)


@problem_class("gradient of a convolution's filter with scale, bias and relu of the data", "dw", "unproven")
class FilterGradient(NamedTuple):
    """The gradient of ``conv(relu(x * scale + bias), w)`` with respect to w."""

    dy: TensorSpec
    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    dw: TensorSpec
    parameters: ConvParameters
    aligned: bool = True
    unproven: Any = True

    @property
    def core(self) -> ConvProblem:
        """The gradient of the convolution, as of x itself."""
        return self.parameters.conv("backward_filter", self.x, self.dw, self.dy, self.aligned)


def statistics_problem(
    conv: ConvProblem, specs: Specs, outs: Outs, *, aligned: bool = True
) -> StatisticsProblem:
    """Validate a convolution with statistics; ``outs`` are y and the sums."""
    _check_conv("a convolution with statistics", conv, STATISTICS_DTYPES)
    scale, bias = specs.get("scale"), specs.get("bias")
    if (scale is None) != (bias is None):
        missing, given = ("scale", "bias") if scale is None else ("bias", "scale")
        raise ValueError(f"{given} is given without {missing}; expected both, or neither")
    for name, spec in (("scale", scale), ("bias", bias)):
        if spec is not None:
            _check_channels(name, spec, conv.x.shape[1], (conv.x.dtype,))
    shape = conv.y.shape[1:2]
    sums, squares = result_specs(("sums", "square_sums"), outs[1:], shape, TensorSpec.packed(shape))
    parameters = ConvParameters.of(conv)
    return StatisticsProblem(conv.x, conv.w, scale, bias, conv.y, sums, squares, parameters, aligned)


def finalize_problem(
    specs: Specs, outs: Outs, count: Any, epsilon: Any, momentum: Any, eq_dtype: Any, *, aligned: bool = True
) -> BatchNormFinalize:
    """Validate the sums and parameters of a batch normalisation; ``outs`` are the six results."""
    channels = specs["sums"].size
    for name, spec in specs.items():
        _check_channels(name, spec, channels, ("float32",))
    elements, weight = as_int(count, "count"), as_float(momentum, "momentum")
    if elements < 2:
        raise ValueError(f"count must be at least 2: got {count}; one element has no unbiased variance")
    if elements >= 2**63:
        raise ValueError(f"count is out of range: got {count}, expected an int64")
    if not 0 <= weight <= 1:
        raise ValueError(f"momentum must be between 0 and 1: got {momentum}")
    dtype = as_dtype(eq_dtype).name
    if dtype not in EQ_DTYPES:
        raise TypeError(f"eq_dtype is not supported: got {dtype}, expected {' or '.join(EQ_DTYPES)}")
    names, like = BatchNormFinalizeResult._fields, TensorSpec.packed((channels,))
    results = [
        *result_specs(names[:2], outs[:2], like.shape, like, dtype),
        *result_specs(names[2:], outs[2:], like.shape, like),
    ]
    return BatchNormFinalize(
        **specs,
        **dict(zip(("eq_scale", "eq_bias", "mean", "invstd", "next_mean", "next_var"), results, strict=True)),
        elements=elements,
        epsilon=check_epsilon(epsilon),
        momentum=weight,
        aligned=aligned,
    )


def data_gradient(conv: ConvProblem, specs: Specs, outs: Outs, *, aligned: bool = True) -> DataGradient:
    """Validate the gradient of a convolution's data, a relu and a batch normalisation."""
    _check_conv("this gradient", conv, GRADIENT_DTYPES)
    x, channels = specs["x"], conv.x.shape[1]
    if x.dtype != conv.x.dtype:
        hint = cast_hint(dy=conv.x.dtype, x=x.dtype)
        raise TypeError(f"x is {x.dtype} and dy is {conv.x.dtype}; they need one dtype{hint}")
    given = {name: specs[name] for name in ("mean", "invstd", "scale", "bias")}
    for name, spec in given.items():
        _check_channels(name, spec, channels, ("float32",))
    names, like = ConvBatchNormGradients._fields[1:], TensorSpec.packed((channels,))
    written = result_specs(names, outs[1:], like.shape, like)
    return DataGradient(
        conv.y, conv.w, x, **given, dz=conv.x,
        **dict(zip(names, written, strict=True)),
        parameters=ConvParameters.of(conv), aligned=aligned,
    )  # fmt: skip


def filter_gradient(conv: ConvProblem, specs: Specs, *, aligned: bool = True) -> FilterGradient:
    """Validate the gradient of a convolution's filter whose data are scaled, shifted and cut at 0."""
    _check_conv("this gradient", conv, GRADIENT_DTYPES)
    scale, bias = specs["scale"], specs["bias"]
    for name, spec in (("scale", scale), ("bias", bias)):
        _check_channels(name, spec, conv.x.shape[1], (conv.x.dtype,))
    return FilterGradient(conv.y, conv.x, scale, bias, conv.w, ConvParameters.of(conv), aligned)


def _check_conv(what: str, conv: ConvProblem, dtypes: tuple[str, ...]) -> None:
    if conv.x.dtype not in dtypes:
        raise TypeError(f"{what} takes {', '.join(dtypes)}, not {conv.x.dtype}")
    if conv.asymmetric_padding:
        raise ValueError(
            f"padding differs between the sides of an axis: got {conv.padding}, expected equal sides: "
            f"{what} has no engine for others"
        )
    for name, spec in (("x", conv.x), ("w", conv.w), ("y", conv.y)):
        if not spec.size:
            raise ValueError(f"{name} has no elements: got shape {spec.shape}, expected some for {what}")


def _check_channels(name: str, spec: TensorSpec, channels: int, dtypes: tuple[str, ...]) -> None:
    allowed = ((channels,), *((1, channels, *[1] * spatial) for spatial in (1, 2, 3)))
    if spec.shape not in allowed or not channels:
        raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected ({channels},)")
    check_dtype(name, spec, dtypes)
