"""Convolution with fused scaling, residual, bias and activation, as one problem."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..typing import FusedActivation
from .checks import cast_hint
from .conv import ConvProblem
from .conv_dtype import check_conv_dtypes
from .parse import as_choice, as_float
from .specs import TensorSpec

ACTIVATIONS: tuple[FusedActivation, ...] = (
    "identity", "relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish",
)  # fmt: skip


def fused_activation(activation: Any) -> FusedActivation:
    """Return the name of an activation; silu is swish."""
    name: FusedActivation = as_choice(activation, (*ACTIVATIONS, "silu"), "activation")
    return "swish" if name == "silu" else name


class FusedConv(NamedTuple):
    """y = act(alpha1 * conv(x, w) + alpha2 * z + b).

    The operands of a run are x, w, z, b and y, less those that are absent.
    """

    conv: ConvProblem
    bias: TensorSpec | None = None  # of shape (1, K, 1, ...)
    z: TensorSpec | None = None  # of the shape of y
    activation: FusedActivation = "identity"
    coefficient: float = 0.0  # clipped relu's ceiling, elu's alpha, swish's beta (0 stands for 1)
    alpha1: float = 1.0
    alpha2: float = 1.0

    @property
    def in_order(self) -> tuple[TensorSpec, ...]:
        """The tensors in the order of a run's pointers."""
        tensors = (self.conv.x, self.conv.w, self.z, self.bias, self.conv.y)
        return tuple(spec for spec in tensors if spec)

    @property
    def core(self) -> ConvProblem:
        """The convolution without the fused operations."""
        return self.conv

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.result,)

    @property
    def result(self) -> TensorSpec:
        """The tensor that is written."""
        return self.conv.y

    def __str__(self) -> str:
        terms = [f"{self.alpha1} * conv", *([f"{self.alpha2} * z {self.z}"] if self.z else [])]
        terms += [f"bias {self.bias}"] if self.bias else []
        return f"{self.activation}(coefficient {self.coefficient}) of {' + '.join(terms)}; {self.conv}"


def fused_problem(
    conv: ConvProblem,
    bias: TensorSpec | None,
    z: TensorSpec | None,
    activation: Any,
    coefficient: float,
    alpha1: float,
    alpha2: float,
) -> FusedConv:
    """Validate the operations fused into a forward convolution, and return the problem."""
    y = conv.y
    check_conv_dtypes("fused", {"x": conv.x.dtype})
    if bias is not None:
        if bias.shape not in (y.shape[1:2], (1, y.shape[1], *[1] * (len(y.shape) - 2))):
            raise ValueError(f"bias has shape {bias.shape}; y of shape {y.shape} needs ({y.shape[1]},)")
        bias = with_axes_of(y, bias)
    if z is not None and z.shape != y.shape:
        raise ValueError(f"residual has shape {z.shape}; y has {y.shape}")
    for name, spec in (("bias", bias), ("residual", z)):
        if spec is not None and spec.dtype != y.dtype:
            hint = cast_hint(**{"x": y.dtype, name: spec.dtype})
            raise TypeError(f"{name} is {spec.dtype} and x is {y.dtype}; they need one dtype{hint}")
    function, parameter = fused_activation(activation), as_float(coefficient, "coefficient")
    return FusedConv(
        conv, bias, z, function, parameter, as_float(alpha1, "alpha1"), as_float(alpha2, "alpha2")
    )


def with_axes_of(y: TensorSpec, bias: TensorSpec) -> TensorSpec:
    """Return an operand of channels with the rank of y; all axes except the channels have length 1."""
    full = (1, y.shape[1], *[1] * (len(y.shape) - 2))
    if bias.layouts:
        return TensorSpec.packed(full, bias.dtype, y.layouts[0] if y.layouts else "nchw")
    step = bias.strides[0] if len(bias.shape) == 1 else bias.strides[1]
    return TensorSpec(full, (step * y.shape[1], step, *[step] * (len(y.shape) - 2)), bias.dtype)
