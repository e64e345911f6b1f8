"""Convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import algo_cache, context, exchange, legacy
from .. import stream as streams
from .._config import config
from ..array import DeviceArray
from ..context import Context
from ..creation import not_on_device, operand
from ..dtypes import DTYPES
from ..errors import CudnnError
from ..problem import ConvProblem, TensorSpec, conv_output_shape, conv_problem, nearest_layout
from ..stream import Stream

__all__ = ["conv", "conv_output_shape"]


def conv(
    x: Any,
    w: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    precision: str | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Convolve: ``y = alpha * conv(x, w) + beta * out``.

    ``y[n, k, p] = sum over c, q of x[n, c, p * stride + q * dilation - before] * w[k, c, q]``, where p and q
    run over 1, 2 or 3 spatial axes and x is 0 outside its bounds.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        Any strides. Anything that speaks DLPack or ``__cuda_array_interface__`` is used in place.
    w : device array, shape (K, C / groups, *window), dtype of x
    padding : int, tuple of int, "valid" | "half" | "full", or ((before, after), ...)
        Zeros around x. ``"half"`` keeps the size for odd windows at stride 1, ``"full"`` has every overlap.
    stride, dilation : int or tuple of int
        Steps of the window over x, and of its elements.
    groups : int
        The channels of x are cut into so many groups, each with K / groups filters of its own.
    mode : {"cross_correlation", "convolution"}
        ``"convolution"`` flips the window.
    precision : {"as_input_f32", "float32", "tf32", "as_input", "float16", "float64"}, optional
        What is computed in. The default is float32 for half types and the dtype of x otherwise, with TF32
        for float32 while ``ct.config.allow_tf32``; ``"float32"`` is IEEE arithmetic whatever that says.
    alpha, beta : float
        Scaling factors. Where beta is 0, ``out`` is only written, never read.
    out : device array, shape of the result and dtype of x, optional
        Where the result goes; any strides. It must not overlap x or w.
    stream : optional
        Where the work is enqueued: an address, or anything with ``__cuda_stream__``.

    Returns
    -------
    DeviceArray, shape (N, K, *out), as :func:`conv_output_shape` has it; or ``out``
        In the layout of x.

    Raises
    ------
    TypeError
        An operand is not on the device, or dtypes differ or are not supported.
    ValueError
        Shapes or parameters do not fit; an operand is closed or on another device; ``beta`` without ``out``.
    NotSupportedError
        cuDNN has no algorithm for this problem; the message lists what was refused and why.
    AllocationError
        Device memory ran out, for every algorithm.

    Notes
    -----
    ``cudnnConvolutionForward``, with algorithms ranked by ``cudnnGetConvolutionForwardAlgorithm_v7``; the
    next one is taken where one is refused or its workspace cannot be had. All forward algorithms are
    deterministic. The formula is that of cuDNN's manual for ``CUDNN_CROSS_CORRELATION``.

    Examples
    --------
    ::

        x = ct.asarray(images)                       # (N, C, H, W)
        y = ct.conv(x, ct.asarray(filters), padding="half")
        y.numpy()
    """
    if beta and out is None:
        raise ValueError(f"beta={beta} needs out, the array that it multiplies")
    run = _stream_of(x, stream)
    previous = streams.activate(run.device)
    try:
        ctx = context.current(run)
        x, w = operand(x, "x", run), operand(w, "w", run)
        y = None if out is None else operand(out, "out", run, written=True)
        call = _prepared(ctx, x, w, y, (padding, stride, dilation, groups, mode, precision))
        if call.pack:
            x, w = _packed(x, run), _packed(w, run)
        if y is None:
            y = out = DeviceArray.new(call.problem.y, run, "the result of conv")
        else:
            call.refuse_overlap(x, w, y)
        x.before_read(run)
        w.before_read(run)
        y.before_write(run)
        try:
            call.choice.run(ctx, (x.pointer, w.pointer, y.pointer), alpha, beta)
        except CudnnError as error:
            error.add_note(f"in {call.problem}, alpha {alpha}, beta {beta}")
            raise
        x.after_use(run)
        w.after_use(run)
        y.after_write(run)
        return out
    finally:
        streams.restore(previous)


class _Call(NamedTuple):
    """What one thread prepared for one set of arguments: all that depends on specs, and not on pointers."""

    problem: ConvProblem
    choice: Any
    pack: bool

    def refuse_overlap(self, x: DeviceArray, w: DeviceArray, y: DeviceArray) -> None:
        """Raise where the output shares memory with an input: cuDNN would read what it has written."""
        first, last = _range(self.problem.y, y.pointer)
        for name, spec, array in (("x", self.problem.x, x), ("w", self.problem.w, w)):
            low, high = _range(spec, array.pointer)
            if low < last and first < high:
                raise ValueError(
                    f"out overlaps {name} in memory; cuDNN would read what it has already written"
                )


class _Scaling(NamedTuple):
    """Takes the place of a choice where there is nothing to sum, and so nothing to choose."""

    plan: legacy.ScalePlan

    def run(self, ctx: Context, pointers: tuple[int, int, int], alpha: float, beta: float) -> None:
        self.plan.run(ctx, pointers, alpha, beta)


def _prepared(
    ctx: Context, x: DeviceArray, w: DeviceArray, y: DeviceArray | None, arguments: tuple[Any, ...]
) -> _Call:
    """Look the call up by its arguments as they were written; prepare it the first time."""
    out = None if y is None else y.spec
    key = ("conv", x.spec, w.spec, out, arguments, config.allow_tf32)
    try:
        call: _Call | None = ctx.calls.get(key)
    except TypeError:  # a list among the arguments: as good as a tuple, but no key
        return _prepare(ctx, x.spec, w.spec, out, arguments)
    if call is None:
        call = ctx.calls[key] = _prepare(ctx, x.spec, w.spec, out, arguments)
    return call


def _prepare(
    ctx: Context, x: TensorSpec, w: TensorSpec, out: TensorSpec | None, arguments: tuple[Any, ...]
) -> _Call:
    padding, stride, dilation, groups, mode, precision = arguments
    if out is not None and not out.describable:
        raise ValueError(f"out has strides {out.strides}; cuDNN writes only where all are positive")
    problem = conv_problem(
        _describable(x),
        _describable(w),
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=mode,
        precision=precision,
        allow_tf32=config.allow_tf32,
        out=out,
    )
    empty = not (problem.x.size and problem.w.size and problem.y.size)
    choice: Any = _Scaling(legacy.ScalePlan(problem.y)) if empty else algo_cache.choose(problem, legacy, ctx)
    return _Call(problem, choice, (problem.x, problem.w) != (x, w))


def _stream_of(x: Any, stream: Any) -> Stream:
    """The stream of a call: the one given, the one in use, or the default stream of x's device."""
    if isinstance(x, DeviceArray):
        device: int | None = x.device
    elif type(x).__module__ in ("numpy", "builtins"):  # said before there need be a device
        raise not_on_device(x, "x")
    else:
        device = exchange.device_of(x) if streams.device_count() > 1 else 0
    if stream is None:
        return streams.current_stream(device)
    return streams.as_stream(stream, streams.current_stream().device if device is None else device)


def _describable(spec: TensorSpec) -> TensorSpec:
    """The spec itself, or that of a packed copy where no descriptor can hold its strides."""
    return spec if spec.describable else TensorSpec.packed(spec.shape, spec.dtype, nearest_layout(spec))


def _packed(array: DeviceArray, stream: Stream) -> DeviceArray:
    return array if array.spec.describable else array.packed(nearest_layout(array.spec), stream)


def _range(spec: TensorSpec, pointer: int) -> tuple[int, int]:
    low, high = spec.extent
    itemsize = DTYPES[spec.dtype].itemsize
    return pointer + low * itemsize, pointer + high * itemsize
