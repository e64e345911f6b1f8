"""Causal convolutions of sequences: of short windows, by FFT, and two with gates; problems and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple

from .checks import (
    FLOATS,
    as_choice,
    batch_hint,
    image_hint,
    one_dtype,
    packed_result,
    result_spec,
    swap_hint,
)
from .specs import Outs, Shape, Specs, T, TensorSpec, check_shape, problem_class

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


# --- by FFT ------------------------------------------------------------------------------------------------

# cuDNN has two sets of kernels, both for powers of two. One takes windows that divide the length, the other
# takes windows as long as the sequence.
FFT_MIN_WIDTH, FFT_MIN_LENGTH = 128, 4096
FFT_MAX_WIDTHS = {"float64": 4096}
FFT_MAX_LENGTHS = {"float64": 2**23}


class FFTCausalConvGradients(NamedTuple, Generic[T]):
    """Gradients of the input and the weights of a causal convolution by FFT, in the dtype of the operands."""

    dx: T
    dw: T


@problem_class(
    lambda self: "gradient of a causal convolution by FFT" if self.dx else "causal convolution by FFT",
    "y dx dw",
)
class FFTCausalConvProblem(NamedTuple):
    """A causal convolution of x, or its gradients if ``dx`` is set; tensors that it does not use are None."""

    x: TensorSpec
    w: TensorSpec
    y: TensorSpec | None
    dy: TensorSpec | None
    dx: TensorSpec | None
    dw: TensorSpec | None

    @property
    def takes_tiles(self) -> bool:
        """Whether the kernels for windows that divide the length take it."""
        return _divides(self.x.shape[2], self.w.shape[1], self.x.dtype)

    @property
    def takes_whole(self) -> bool:
        """Whether the kernels for windows as long as the sequence take it."""
        return _is_whole(self.x.shape[2], self.w.shape[1], self.x.dtype)


def fft_causal_conv_shape(x_shape: Iterable[int], w_shape: Iterable[int], dtype: str = "float32") -> Shape:
    """Return the shape of a causal convolution by FFT, which is that of x, after a check of the operands.

    >>> fft_causal_conv_shape((2, 64, 1024), (64, 256))
    (2, 64, 1024)
    """
    x, w = sequence_shapes(x_shape, w_shape)
    length, width = x[2], w[1]
    if _divides(length, width, dtype) or _is_whole(length, width, dtype):
        return x
    widest, longest = FFT_MAX_WIDTHS.get(dtype, 2**14), FFT_MAX_LENGTHS.get(dtype, 2**24)
    if _is_power(width, FFT_MIN_WIDTH, widest):
        raise ValueError(
            f"the length of x is not supported: got {length}, expected a multiple of the width {width} of w; "
            "pad x with zeros at its end, which changes no earlier result"
        )
    raise ValueError(
        f"the width of w is not supported: got {width} for {dtype} and a length of {length}, expected a "
        f"power of two from {FFT_MIN_WIDTH} to {widest}, or the length of x, a power of two from "
        f"{FFT_MIN_LENGTH} to {longest}; pad w, and x if necessary, with zeros at the end"
    )


def fft_causal_conv_problem(specs: Specs, outs: Outs) -> FFTCausalConvProblem:
    """Validate the operands of a causal convolution by FFT, or of its gradients with dy.

    ``outs`` are y, or dx and dw. New results are contiguous, as cuDNN writes them.
    """
    x, w, dy = (specs.get(name) for name in ("x", "w", "dy"))
    assert x is not None
    assert w is not None
    dtype = one_dtype("fft_causal_conv1d", FLOATS, **{name: spec.dtype for name, spec in specs.items()})
    shape = fft_causal_conv_shape(x.shape, w.shape, dtype)
    like_x = TensorSpec.packed(shape, dtype)
    if dy is None:
        y = result_spec(shape, x, out=outs[0] or like_x)
        return FFTCausalConvProblem(x, w, y, None, None, None)
    if dy.shape != shape:
        raise ValueError(f"dy has a wrong shape: got {dy.shape}, expected {shape}")
    dx = result_spec(shape, x, out=outs[0] or like_x)
    dw = result_spec(w.shape, w, out=outs[1], name="dw of out")
    return FFTCausalConvProblem(x, w, None, dy, dx, dw)


def _divides(length: int, width: int, dtype: str) -> bool:
    return _is_power(width, FFT_MIN_WIDTH, FFT_MAX_WIDTHS.get(dtype, 2**14)) and length % width == 0


def _is_whole(length: int, width: int, dtype: str) -> bool:
    return length == width and _is_power(width, FFT_MIN_LENGTH, FFT_MAX_LENGTHS.get(dtype, 2**24))


def _is_power(number: int, least: int, most: int) -> bool:
    """Return whether a number is a power of two in a range."""
    return least <= number <= most and number & (number - 1) == 0


# --- two convolutions with gates between and behind them ---------------------------------------------------

MIN_WIDTH, MAX_PROJECTION, MAX_MIXER = 2, 32, 256  # widths of windows that cuDNN has kernels for


class B2BCausalConvResult(NamedTuple, Generic[T]):
    """The gated sequences, and the mixed sequences before the last gate, which the gradient reads."""

    y: T
    mixed: T


class B2BCausalConvGradients(NamedTuple, Generic[T]):
    """Gradients of the operands of :func:`b2b_causal_conv1d`.

    The parameters have gradients of float64 for float64 operands, and of float32 for all others: cuDNN adds
    them up in this dtype.
    """

    dx: T
    dw_proj: T
    dw_mixer: T
    dskip_bias: T


@problem_class("two causal convolutions with gates", "y mixed")
class B2BCausalConvProblem(NamedTuple):
    """Two causal convolutions with gates."""

    x: TensorSpec
    w_proj: TensorSpec
    w_mixer: TensorSpec
    skip_bias: TensorSpec
    y: TensorSpec
    mixed: TensorSpec


@problem_class("gradient of two causal convolutions with gates", "dx dw_proj dw_mixer dskip_bias")
class B2BCausalConvGradientProblem(NamedTuple):
    """The gradients of two causal convolutions with gates."""

    x: TensorSpec
    w_proj: TensorSpec
    w_mixer: TensorSpec
    skip_bias: TensorSpec
    mixed: TensorSpec
    dy: TensorSpec
    dx: TensorSpec
    dw_proj: TensorSpec
    dw_mixer: TensorSpec
    dskip_bias: TensorSpec


def b2b_causal_conv_shape(
    x_shape: Iterable[int],
    w_proj_shape: Iterable[int],
    w_mixer_shape: Iterable[int],
    skip_bias_shape: Iterable[int],
) -> Shape:
    """Return the shape of the results of two causal convolutions with gates, after a check of the operands.

    >>> b2b_causal_conv_shape((2, 64, 3, 100), (64, 3, 4), (64, 7), (64,))
    (2, 64, 100)
    """
    x = check_shape(x_shape, "x_shape")
    if len(x) != 4 or x[2] != 3:
        interleaved = len(x) == 3 and x[1] % 3 == 0
        hint = f"; pass x.reshape({x[0]}, {x[1] // 3}, 3, {x[2]})" if interleaved else batch_hint("x", x, 4)
        raise ValueError(f"x has a wrong shape: got {x}, expected (N, channels, 3, length){hint}")
    n, channels, _, length = x
    for name, given, leading, most in (
        ("w_proj", w_proj_shape, (channels, 3), MAX_PROJECTION),
        ("w_mixer", w_mixer_shape, (channels,), MAX_MIXER),
    ):
        w = check_shape(given, f"{name}_shape")
        if w[:-1] != leading:
            wanted = ", ".join(map(str, (*leading, "width")))
            raise ValueError(f"{name} has a wrong shape: got {w}, expected ({wanted}) for x of shape {x}")
        if not MIN_WIDTH <= w[-1] <= most:
            raise ValueError(
                f"the width of {name} is not supported: got {w[-1]}, expected {MIN_WIDTH} to {most}"
            )
    bias = check_shape(skip_bias_shape, "skip_bias_shape")
    if bias != (channels,):
        raise ValueError(
            f"skip_bias has a wrong shape: got {bias}, expected ({channels},) for x of shape {x}"
        )
    return (n, channels, length)


def b2b_causal_conv_problem(specs: Specs, outs: Outs) -> Any:
    """Validate the operands of two causal convolutions with gates, or of their gradients with dy.

    New results are contiguous, as cuDNN writes them.
    """
    dtypes = {name: spec.dtype for name, spec in specs.items()}
    dtype = one_dtype("b2b_causal_conv1d", FLOATS, **dtypes)
    x, w_proj, w_mixer, skip_bias, *saved = specs.values()
    shape = b2b_causal_conv_shape(x.shape, w_proj.shape, w_mixer.shape, skip_bias.shape)
    if not saved:
        y = packed_result(shape, dtype, outs[0], "out")
        mixed = packed_result(shape, dtype, outs[1], "mixed of out")
        return B2BCausalConvProblem(x, w_proj, w_mixer, skip_bias, y, mixed)
    for name in ("mixed", "dy"):
        if specs[name].shape != shape:
            raise ValueError(f"{name} has a wrong shape: got {specs[name].shape}, expected {shape}")
    wide, names = causal_gradient_dtype(dtype), ("dw_proj", "dw_mixer", "dskip_bias")
    results = [packed_result(x.shape, dtype, outs[0], "out")]
    for name, parameter, out in zip(names, (w_proj, w_mixer, skip_bias), outs[1:], strict=True):
        results.append(packed_result(parameter.shape, wide, out, f"{name} of out"))
    return B2BCausalConvGradientProblem(*specs.values(), *results)
