"""Convolution with a factor and a bias for each channel, a residual and an activation, as one problem."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..typing import ConvMode, FusedActivation
from .checks import Specs
from .conv import ConvProblem, Pairs
from .epilogue import check_dtype
from .fused import fused_activation, with_axes_of
from .layer import titled, writes
from .parse import as_float
from .shape_hints import cast_hint
from .specs import Shape, TensorSpec

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


@titled("convolution with scale and bias")
@writes("y")
class ScaledConv(NamedTuple):
    """``y = act(conv(x, w) * scale + bias + z)``.

    ``scale`` and ``bias`` have the shape (1, K, 1, ...), ``z`` that of y; it may be absent. ``coefficient``
    is the ceiling of a clipped relu and the alpha of elu.
    """

    x: TensorSpec
    w: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    z: TensorSpec | None
    y: TensorSpec
    parameters: ConvParameters
    activation: FusedActivation = "relu"
    coefficient: float = 0.0
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
    check_dtype(name, spec, dtypes)
    return with_axes_of(image, spec)
