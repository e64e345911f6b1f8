"""Convolutions with the operations that follow them, as one problem: bias, residual, activation, scales."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from ..typing import ConvMode, FusedActivation, MatmulActivation
from . import arithmetic
from .checks import as_choice, as_float, as_int, cast_hint, result_spec
from .conv import ConvProblem, Pairs, conv_geometry, conv_output_shape
from .specs import Outs, Shape, Specs, T, TensorSpec, problem_class

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
    arithmetic.check_conv_dtypes("fused", {"x": conv.x.dtype})
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


# --- factors of channels -----------------------------------------------------------------------------------

DTYPES = ("float16", "bfloat16", "float32")  # cuDNN has no engine for float64


class ConvParameters(NamedTuple):
    """Geometry and arithmetic of a convolution, without its tensors; fields as in `ConvProblem`."""

    padding: Pairs
    stride: Shape
    dilation: Shape
    groups: int
    mode: ConvMode
    compute: str
    tensor_cores: bool

    @classmethod
    def of(cls, conv: ConvProblem) -> ConvParameters:
        """Return the parameters of a problem."""
        return cls(*(getattr(conv, name) for name in cls._fields))

    def conv(
        self, direction: str, x: TensorSpec, w: TensorSpec, y: TensorSpec, aligned: bool = True
    ) -> ConvProblem:
        """Return the problem of these tensors, named by their roles in the forward direction."""
        return ConvProblem(direction, x, w, y, *self, aligned=aligned)


@problem_class("convolution with scale and bias", "y")
class ScaledConv(NamedTuple):
    """``y = act(conv(x, w) * scale + bias + z)``."""

    x: TensorSpec
    w: TensorSpec
    scale: TensorSpec  # of shape (1, K, 1, ...), as ``bias``
    bias: TensorSpec
    z: TensorSpec | None  # of the shape of y
    y: TensorSpec
    parameters: ConvParameters
    activation: FusedActivation = "relu"
    coefficient: float = 0.0  # the ceiling of a clipped relu, the alpha of elu
    aligned: bool = True

    @property
    def core(self) -> ConvProblem:
        """The convolution without the operations that follow it."""
        return self.parameters.conv("forward", self.x, self.w, self.y, self.aligned)


def scaled_conv_problem(
    conv: ConvProblem, specs: Specs, activation: Any, coefficient: Any, *, aligned: bool = True
) -> ScaledConv:
    """Validate the operations after a forward convolution, and return the problem."""
    y, z = conv.y, specs.get("residual")
    if conv.x.dtype not in DTYPES:
        raise TypeError(f"a convolution with scale and bias takes {', '.join(DTYPES)}, not {conv.x.dtype}")
    if conv.compute != "float32":
        raise ValueError(
            f"precision sums in {conv.compute}, expected 'as_input_f32', 'tf32' or 'float32': a convolution "
            "with scale and bias sums in float32"
        )
    if z is not None and z.shape != y.shape:
        raise ValueError(f"residual has shape {z.shape}; y has {y.shape}")
    if z is not None and z.dtype != y.dtype:
        hint = cast_hint(x=y.dtype, residual=z.dtype)
        raise TypeError(f"residual is {z.dtype} and x is {y.dtype}; they need one dtype{hint}")
    scale, bias = (channel_operand(name, specs[name], y, (y.dtype, "float32")) for name in ("scale", "bias"))
    function, parameter = fused_activation(activation), as_float(coefficient, "coefficient")
    tensors = (conv.x, conv.w, scale, bias, z, y)
    return ScaledConv(*tensors, ConvParameters.of(conv), function, parameter, aligned)


def channel_operand(name: str, spec: TensorSpec, image: TensorSpec, dtypes: tuple[str, ...]) -> TensorSpec:
    """Return the spec of an operand with one element for each channel of ``image``, with its rank."""
    channels = image.shape[1]
    if spec.shape not in ((channels,), (1, channels, *[1] * (len(image.shape) - 2))):
        raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected ({channels},)")
    arithmetic.check_dtype(name, spec, dtypes)
    return with_axes_of(image, spec)


# --- float8 ------------------------------------------------------------------------------------------------


class ScaledConvResult(NamedTuple, Generic[T]):
    """Result of a convolution of float8, and its largest magnitude before ``scale``; None without it."""

    y: T
    amax: T | None


@problem_class("convolution of float8", "y amax")
class Float8Conv(NamedTuple):
    """``y = scale * act(descale_x * descale_w * conv(x, w) + bias)``."""

    x: TensorSpec
    w: TensorSpec
    bias: TensorSpec | None  # of shape (1, K, 1, ...)
    descale_x: TensorSpec | None
    descale_w: TensorSpec | None
    scale: TensorSpec | None
    y: TensorSpec
    amax: TensorSpec | None  # the largest magnitude before ``scale``
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
    arithmetic.check_float8(x=x, w=w)
    shape = conv_output_shape(
        x.shape, w.shape, padding=padding, stride=stride, dilation=dilation, groups=groups
    )
    y = result_spec(shape, x, w, out=outs[0], dtype=arithmetic.float8_result_dtype(out_dtype, outs[0]))
    if bias is not None:
        bias = channel_operand("bias", bias, y, arithmetic.bias_dtypes(y.dtype))
    geometry = conv_geometry(w.shape[2:], padding, stride, dilation)
    return Float8Conv(
        x,
        w,
        bias,
        **arithmetic.scales_of(specs, "descale_x", "descale_w", "scale"),
        y=y,
        amax=arithmetic.amax_spec(outs),
        parameters=ConvParameters(*geometry, as_int(groups, "groups"), "cross_correlation", "float32", True),
        activation=arithmetic.activation_name(activation),
        aligned=aligned,
    )
