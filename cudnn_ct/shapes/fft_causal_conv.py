"""Causal convolutions of sequences with long windows, by FFT: their problem and its shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple

from .causal_conv import sequence_shapes
from .checks import FLOATS, Outs, Specs, one_dtype, result_spec
from .layer import problem_class
from .specs import Shape, T, TensorSpec

# cuDNN has two sets of kernels, both for powers of two. One takes windows that divide the length, the other
# takes windows as long as the sequence.
MIN_WIDTH, MIN_LENGTH = 128, 4096
MAX_WIDTHS = {"float64": 4096}
MAX_LENGTHS = {"float64": 2**23}


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
    widest, longest = MAX_WIDTHS.get(dtype, 2**14), MAX_LENGTHS.get(dtype, 2**24)
    if _is_power(width, MIN_WIDTH, widest):
        raise ValueError(
            f"the length of x is not supported: got {length}, expected a multiple of the width {width} of w; "
            "pad x with zeros at its end, which changes no earlier result"
        )
    raise ValueError(
        f"the width of w is not supported: got {width} for {dtype} and a length of {length}, expected a "
        f"power of two from {MIN_WIDTH} to {widest}, or the length of x, a power of two from {MIN_LENGTH} "
        f"to {longest}; pad w, and x if necessary, with zeros at the end"
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
    return _is_power(width, MIN_WIDTH, MAX_WIDTHS.get(dtype, 2**14)) and length % width == 0


def _is_whole(length: int, width: int, dtype: str) -> bool:
    return length == width and _is_power(width, MIN_LENGTH, MAX_LENGTHS.get(dtype, 2**24))


def _is_power(number: int, least: int, most: int) -> bool:
    """Return whether a number is a power of two in a range."""
    return least <= number <= most and number & (number - 1) == 0
