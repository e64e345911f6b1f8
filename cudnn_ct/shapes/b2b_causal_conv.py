"""Two causal convolutions of sequences with gates between and behind them: their problems and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple

from .causal_conv import causal_gradient_dtype
from .checks import FLOATS, Outs, Specs, batch_hint, one_dtype, packed_result
from .layer import problem_class
from .specs import Shape, T, TensorSpec, check_shape

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
