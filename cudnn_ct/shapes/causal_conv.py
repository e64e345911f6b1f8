"""Causal convolutions of sequences with a window for each channel: their problem and its shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple

from .checks import FLOATS, Outs, Specs, batch_hint, image_hint, one_dtype, result_spec, swap_hint
from .layer import problem_class
from .parse import as_choice
from .specs import Shape, T, TensorSpec, check_shape

CausalActivation = Literal["silu"]

WIDTHS = (*range(2, 9), 16, 32, 64, 128, 256)  # of the windows that cuDNN has kernels for
WITHOUT_BIAS = "bias is not given"  # why a gradient has no dbias


class CausalConvGradients(NamedTuple, Generic[T]):
    """Gradients of the input, the weights and, if it was given, the bias of a causal convolution.

    ``dw`` and ``dbias`` are float64 for float64 operands, and float32 for all others: cuDNN adds them up in
    this dtype.
    """

    dx: T
    dw: T
    dbias: T | None


@problem_class(
    lambda self: "gradient of a causal convolution" if self.dx else "causal convolution", "y dx dw dbias"
)
class CausalConvProblem(NamedTuple):
    """A causal convolution of x, or its gradients if ``dx`` is set; tensors that it does not use are None."""

    x: TensorSpec
    w: TensorSpec
    bias: TensorSpec | None
    y: TensorSpec | None
    dy: TensorSpec | None
    dx: TensorSpec | None
    dw: TensorSpec | None
    dbias: TensorSpec | None
    activation: CausalActivation | None


def causal_conv_shape(
    x_shape: Iterable[int], w_shape: Iterable[int], bias_shape: Iterable[int] | None = None
) -> Shape:
    """Return the shape of a causal convolution, which is that of x, after a check of the operands.

    >>> causal_conv_shape((2, 64, 100), (64, 4), (64,))
    (2, 64, 100)
    """
    x, w = sequence_shapes(x_shape, w_shape)
    if w[1] not in WIDTHS:
        raise ValueError(
            f"the width of w is not supported: got {w[1]}, expected {WIDTHS[0]} to 8 or one of 16, 32, 64, "
            "128 and 256, which cuDNN has kernels for; pad w with zeros in front of each window"
        )
    if bias_shape is not None and (bias := check_shape(bias_shape, "bias_shape")) != x[1:2]:
        raise ValueError(f"bias has a wrong shape: got {bias}, expected ({x[1]},) for x of shape {x}")
    return x


def sequence_shapes(x_shape: Iterable[int], w_shape: Iterable[int]) -> tuple[Shape, Shape]:
    """Return the shapes of sequences (N, channels, length) and of their windows (channels, width)."""
    x, w = check_shape(x_shape, "x_shape"), check_shape(w_shape, "w_shape")
    if len(x) != 3:
        hint = swap_hint("x", "w") if len(w) == 3 else batch_hint("x", x, 3)
        raise ValueError(f"x has a wrong shape: got {x}, expected (N, channels, length){hint}")
    if len(w) != 2 or w[0] != x[1]:
        hint = image_hint("x", x, w[0]) if len(w) == 2 else ""
        raise ValueError(f"w has a wrong shape: got {w}, expected ({x[1]}, width) for x of shape {x}{hint}")
    return x, w


def causal_activation(activation: Any) -> CausalActivation | None:
    """Return the activation of a causal convolution; None for the identity."""
    if activation is None:
        return None
    name = as_choice(activation, ("silu", "swish", "identity"), "activation")
    return None if name == "identity" else "silu"


def causal_gradient_dtype(dtype: str) -> str:
    """Return the dtype of the gradients of weights and bias."""
    return "float64" if dtype == "float64" else "float32"


def causal_conv_problem(specs: Specs, outs: Outs, activation: Any) -> CausalConvProblem:
    """Validate the operands of a causal convolution, or of its gradients with dy.

    ``outs`` are y, or dx, dw and, with a bias, dbias.
    """
    x, w, bias, dy = (specs.get(name) for name in ("x", "w", "bias", "dy"))
    assert x is not None
    assert w is not None
    one_dtype("causal_conv1d", FLOATS, **{name: spec.dtype for name, spec in specs.items()})
    shape = causal_conv_shape(x.shape, w.shape, bias and bias.shape)
    chosen = causal_activation(activation)
    if dy is None:
        y = result_spec(shape, x, out=outs[0])
        return CausalConvProblem(x, w, bias, y, None, None, None, None, chosen)
    if dy.shape != shape:
        raise ValueError(f"dy has a wrong shape: got {dy.shape}, expected {shape}")
    dtype = causal_gradient_dtype(x.dtype)
    dx = result_spec(shape, x, dy, out=outs[0])
    dw = outs[1] or (w if w.is_dense and w.size else TensorSpec.packed(w.shape))._replace(dtype=dtype)
    dw = result_spec(w.shape, w, out=dw, name="dw of out", dtype=dtype)
    dbias = bias and result_spec(bias.shape, bias, out=outs[2], name="dbias of out", dtype=dtype)
    return CausalConvProblem(x, w, bias, None, dy, dx, dw, dbias, chosen)
