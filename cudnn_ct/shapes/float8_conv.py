"""Convolution of float8 images with scales: the problem, and the operands that it accepts."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from ..typing import MatmulActivation
from .checks import Outs, Specs, result_spec
from .conv import ConvProblem, conv_geometry, conv_output_shape
from .epilogue import (
    activation_name,
    amax_spec,
    bias_dtypes,
    check_float8,
    float8_result_dtype,
    scales_of,
)
from .layer import titled, writes
from .parse import as_int
from .scaled_conv import ConvParameters, channel_operand
from .specs import TensorSpec

T = TypeVar("T")


class ScaledConvResult(NamedTuple, Generic[T]):
    """Result of a convolution of float8, and its largest magnitude before ``scale``; None without it."""

    y: T
    amax: T | None


@titled("convolution of float8")
@writes("y", "amax")
class Float8Conv(NamedTuple):
    """``y = scale * act(descale_x * descale_w * conv(x, w) + bias)``.

    ``bias`` has the shape (1, K, 1, ...). ``amax`` is the largest magnitude before ``scale``.
    """

    x: TensorSpec
    w: TensorSpec
    bias: TensorSpec | None
    descale_x: TensorSpec | None
    descale_w: TensorSpec | None
    scale: TensorSpec | None
    y: TensorSpec
    amax: TensorSpec | None
    parameters: ConvParameters
    activation: MatmulActivation = "identity"
    aligned: bool = True

    @property
    def core(self) -> ConvProblem:
        """The convolution without the operations that follow it."""
        return self.parameters.conv("forward", self.x, self.w, self.y, self.aligned)


def float8_conv_problem(
    specs: Specs,
    outs: Outs,
    activation: Any,
    out_dtype: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: Any = 1,
    aligned: bool = True,
) -> Float8Conv:
    """Validate a convolution of float8 with scales; ``outs`` are y and, if it is computed, amax."""
    x, w, bias = specs["x"], specs["w"], specs.get("bias")
    check_float8(x=x, w=w)
    shape = conv_output_shape(
        x.shape, w.shape, padding=padding, stride=stride, dilation=dilation, groups=groups
    )
    y = result_spec(shape, x, w, out=outs[0], dtype=float8_result_dtype(out_dtype, outs[0]))
    if bias is not None:
        bias = channel_operand("bias", bias, y, bias_dtypes(y.dtype))
    geometry = conv_geometry(w.shape[2:], padding, stride, dilation)
    return Float8Conv(
        x,
        w,
        bias,
        **scales_of(specs, "descale_x", "descale_w", "scale"),
        y=y,
        amax=amax_spec(outs),
        parameters=ConvParameters(*geometry, as_int(groups, "groups"), "cross_correlation", "float32", True),
        activation=activation_name(activation),
        aligned=aligned,
    )
