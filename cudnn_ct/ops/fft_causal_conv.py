"""Causal convolutions of sequences with long windows, and their gradients, by the FFTs of libcudnn_ext."""

from __future__ import annotations

from ctypes import byref, c_size_t
from typing import Never

from .._hints import UNSET, corrected
from .._lib import load
from ..array import DeviceArray
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.base import Plan
from ..plans.program import PointerSlot, Program, Step, Steps
from ..plans.stream_call import StreamCall, on_contiguous, require_function
from ..shapes.causal_conv import FFTCausalConvGradients, FFTCausalConvProblem, fft_causal_conv_problem
from ..typing import ArrayLike, OutLike, StreamLike
from ._call import execute, execute_as
from ._documented import documented
from ._implementations import along, of_problem
from ._operation import Operation

MAX_BLOCKS = 65_535  # of the axes of a grid on which the kernels for whole sequences have N and the channels

# In the order of the C functions.
TILES = {"Forward": ("x", "w", "y"), "Backward": ("x", "w", "dy", "dx", "dw")}
WHOLE = {"Forward": ("x", "w", "y"), "Backward": ("dy", "dx", "dw")}


@documented()
def fft_causal_conv1d(
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve each channel of sequences with its own long window, by fast Fourier transforms.

    Elements before the first are 0. The first weight of a window meets the present time step: the order is
    the reverse of that of :func:`causal_conv1d` ::

        y[n, c, t] = sum(w[c, i] * x[n, c, t - i] for i in range(width))

    Parameters
    ----------
    x : device array, shape (N, channels, length), float16 | bfloat16 | float32 | float64
        Contiguous; for other strides a copy is made.
    w : device array, shape (channels, width), dtype of x
        The width is a power of two from 128 to 16,384 (4,096 for float64) that divides the length, or it is
        the length, a power of two from 4,096 to 16,777,216 (8,388,608 for float64).

    Notes
    -----
    ``cudnnFFTCausalConv1dForward``; for other windows as long as the sequence
    ``cudnnLongFFTCausalConv1dForward``, with a workspace of up to 33 bytes for each element of x (65 for
    float64). They need cuDNN 9.26 and its library libcudnn_ext, which JIT wheels lack. cuDNN compiles a
    kernel for each width and dtype by an NVRTC and headers of CUDA 12.4 or newer, and keeps it until the
    process ends. Half precision is transformed in float32. The error of each result is relative to the
    largest ones of its sequence, and a NaN or an infinity spreads over a sequence. Whether results are the
    same bits from run to run is not documented.

    Examples
    --------
    >>> x, w = ct.full((1, 1, 256), 2), ct.full((1, 128), 0.5)
    >>> ct.fft_causal_conv1d(x, w).numpy()[0, 0, [0, 1, 127, 255]]
    array([  1.,   2., 128., 128.], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(fft_causal_conv1d, locals())
    return execute(_CONV, ("x", "w"), (x, w), outs=(out,), stream=stream)[0]


@documented(fft_causal_conv1d)
def fft_causal_conv1d_backward(
    dy: ArrayLike,
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> FFTCausalConvGradients[DeviceArray]:
    """Compute the gradients of :func:`fft_causal_conv1d` with regard to the input and the weights.

    Parameters
    ----------
    dy : device array, shape and dtype of x
        The gradient of the result.

    Returns
    -------
    FFTCausalConvGradients
        ``dx``, shape and dtype of x; ``dw``, shape and dtype of w.

    Notes
    -----
    ``cudnnFFTCausalConv1dBackward``; for other windows as long as the sequence
    ``cudnnLongFFTCausalConv1dBackward`` after the forward pass, whose spectra it reads from a reserve space
    as large as the workspace. Needs and costs are those of the forward pass. Whether the last bits of dw vary
    from run to run is not documented.

    Examples
    --------
    >>> x, w = ct.full((1, 1, 256), 2), ct.full((1, 128), 0.5)
    >>> dx, dw = ct.fft_causal_conv1d_backward(ct.full((1, 1, 256), 1), x, w)
    >>> dx.numpy()[0, 0, [0, 127, 254, 255]], dw.numpy()[0, [0, 1, 127]]
    (array([64. , 64. ,  1. ,  0.5], dtype=float32), array([512., 510., 258.], dtype=float32))
    """
    if more or unknown or dy is UNSET or x is UNSET or w is UNSET:
        return corrected(fft_causal_conv1d_backward, locals())
    given = {"x": x, "w": w, "dy": dy}
    return execute_as(FFTCausalConvGradients, _GRADIENT, given, (), out, stream)


def _by_tiles(problem: FFTCausalConvProblem) -> Plan | None:
    """Return the plan by the kernels for windows that divide the length; None for other windows."""
    if not problem.takes_tiles:
        return None
    return on_contiguous("fft_causal_conv1d", problem, _tiles)


def _by_whole(problem: FFTCausalConvProblem) -> Plan | None:
    """Return the plan by the kernels for windows as long as the sequence; None for other windows."""
    if not problem.takes_whole:
        return None
    n, channels, _ = problem.x.shape
    if max(n, channels) > MAX_BLOCKS:
        raise NotSupportedError(
            f"fft_causal_conv1d takes at most {MAX_BLOCKS:,} sequences and channels for a window as long as "
            f"the sequence: got {n:,} and {channels:,}"
        )
    return on_contiguous("fft_causal_conv1d", problem, _whole)


def _tiles(problem: FFTCausalConvProblem) -> Plan:
    direction = "Forward" if problem.y else "Backward"
    function, names = f"cudnnFFTCausalConv1d{direction}", TILES[direction]
    require_function("fft_causal_conv1d", function)
    return StreamCall(function, [*map(PointerSlot, names), *_sizes(problem)], names)


def _whole(problem: FFTCausalConvProblem) -> Plan:
    """Return the forward pass, and for gradients the backward pass that reads its spectra."""
    require_function("fft_causal_conv1d", "cudnnLongFFTCausalConv1dForward")
    workspace, reserve = c_size_t(), c_size_t()
    load().cudnnLongFFTCausalConv1dGetBufferSizes(*_sizes(problem), byref(workspace), byref(reserve))
    nbytes = workspace.value, reserve.value
    forward, backward = (_of_whole(direction, problem, nbytes) for direction in WHOLE)
    if problem.y:
        return Program(Steps(nbytes, [Step(forward, (0, 1, 2, 3, 4))]))
    steps = [Step(forward, (0, 1, 5, 6, 7)), Step(backward, (2, 3, 4, 6, 7))]
    return Program(Steps((problem.x, *nbytes), steps))


def _of_whole(direction: str, problem: FFTCausalConvProblem, nbytes: tuple[int, int]) -> StreamCall:
    names, (workspace, reserve) = WHOLE[direction], nbytes
    buffers = (PointerSlot("workspace"), workspace, PointerSlot("reserve"), reserve)
    arguments = [*map(PointerSlot, names), *_sizes(problem), *buffers]
    return StreamCall(f"cudnnLongFFTCausalConv1d{direction}", arguments, (*names, "workspace", "reserve"))


def _sizes(problem: FFTCausalConvProblem) -> tuple[int, ...]:
    return (*problem.x.shape, problem.w.shape[1], DTYPES[problem.x.dtype].code)


# cuDNN requires 16-byte aligned operands. The kernels for tiles come first, because they need no buffers; a
# GPU that lacks the shared memory for a window rejects them.
_IMPLEMENTATIONS = (of_problem(_by_tiles, aligned=True), of_problem(_by_whole, aligned=True))
_CONV = Operation(
    "a causal convolution by FFT",
    fft_causal_conv_problem,
    _IMPLEMENTATIONS,
    independent=lambda problem: along(problem, (0,)),
    relayout=False,
)
_GRADIENT = Operation(
    "the gradient of a causal convolution by FFT",
    fft_causal_conv_problem,
    _IMPLEMENTATIONS,
    written=("out", "dw of out"),
    relayout=False,
)
