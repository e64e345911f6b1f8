"""Two causal convolutions with gates between and behind them in one kernel, and their gradients."""

from __future__ import annotations

from typing import Any, Never

from .._hints import UNSET, corrected
from ..array import DeviceArray
from ..dtypes import DTYPES
from ..plans.base import Plan, tensors_of
from ..plans.elementwise import fill_plan
from ..plans.program import PointerSlot, Step, chained
from ..plans.stream_call import StreamCall, on_contiguous, require_function
from ..shapes.causal_conv import (
    B2BCausalConvGradientProblem,
    B2BCausalConvGradients,
    B2BCausalConvProblem,
    B2BCausalConvResult,
    b2b_causal_conv_problem,
)
from ..shapes.checks import result_slots
from ..typing import ArrayLike, OutLike, StreamLike
from ._call import execute
from ._documented import documented
from ._fallback import of_problem
from ._operation import Operation

OPERANDS = ("x", "w_proj", "w_mixer", "skip_bias")

# In the order of the C functions.
FORWARD = (*OPERANDS, "mixed", "y")
BACKWARD = (*OPERANDS, "mixed", "dy", "dx", "dw_proj", "dw_mixer", "dskip_bias")


@documented()
def b2b_causal_conv1d(
    x: ArrayLike,
    w_proj: ArrayLike,
    w_mixer: ArrayLike,
    skip_bias: ArrayLike,
    *more: Never,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> B2BCausalConvResult[DeviceArray]:
    """Compute two causal convolutions back to back, with a gate behind each, as in short Hyena blocks.

    With ``conv``, the causal convolution of :func:`causal_conv1d` without bias and activation ::

        gate, a, b = (conv(x[:, :, i], w_proj[:, i]) for i in range(3))
        mixed = conv(a * b, w_mixer) + skip_bias[:, None] * a * b
        y = gate * mixed

    Parameters
    ----------
    x : device array, shape (N, channels, 3, length), float16 | bfloat16 | float32 | float64
        Contiguous; for other strides a copy is made. An array (N, 3 * channels, length) of interleaved
        projections is reshaped without a copy.
    w_proj : device array, shape (channels, 3, width), dtype of x
        The last weight of a window meets the present time step. A width of 2 to 32.
    w_mixer : device array, shape (channels, width), dtype of x
        A width of 2 to 256.
    skip_bias : device array, shape (channels,), dtype of x
        The factors of the skip connection.

    Returns
    -------
    B2BCausalConvResult
        ``y`` and ``mixed``, shape (N, channels, length), dtype of x; the gradient reads ``mixed``.

    Notes
    -----
    ``cudnnB2BCausalConv1dForward``. It needs cuDNN 9.24 and its library libcudnn_ext, which JIT wheels lack.
    cuDNN compiles a kernel for each pair of widths and dtype by NVRTC with the headers of a CUDA toolkit, and
    keeps it until the process ends. Whether results are the same bits from run to run is not documented.

    Examples
    --------
    >>> x, w = ct.full((1, 1, 3, 4), 1), ct.asarray([[[0, 1], [0, 2], [0, 1]]], "float32")
    >>> y, mixed = ct.b2b_causal_conv1d(x, w, ct.asarray([[10, 1]], "float32"), ct.full((1,), 0.5))
    >>> y.numpy()
    array([[[ 3., 23., 23., 23.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w_proj is UNSET or w_mixer is UNSET or skip_bias is UNSET:
        return corrected(b2b_causal_conv1d, locals())
    outs = result_slots(out, B2BCausalConvResult._fields)
    results = execute(_CONV, OPERANDS, (x, w_proj, w_mixer, skip_bias), outs=outs, stream=stream)
    return B2BCausalConvResult(*results)


@documented(b2b_causal_conv1d)
def b2b_causal_conv1d_backward(
    dy: ArrayLike,
    x: ArrayLike,
    w_proj: ArrayLike,
    w_mixer: ArrayLike,
    skip_bias: ArrayLike,
    mixed: ArrayLike,
    *more: Never,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> B2BCausalConvGradients[DeviceArray]:
    """Compute the gradients of :func:`b2b_causal_conv1d` with regard to all of its operands.

    Parameters
    ----------
    dy : device array, shape (N, channels, length), dtype of x
        The gradient of ``y``.
    mixed : device array, shape (N, channels, length), dtype of x
        The second result of :func:`b2b_causal_conv1d`.

    Returns
    -------
    B2BCausalConvGradients
        ``dx``, shape and dtype of x; ``dw_proj``, ``dw_mixer`` and ``dskip_bias``, the shapes of the
        parameters, float64 for float64 operands and float32 for all others.

    Notes
    -----
    ``cudnnB2BCausalConv1dBackward``, after the gradients of the parameters are set to 0. Whether their last
    bits vary from run to run is not documented. Needs and costs are those of the forward pass.

    Examples
    --------
    >>> x, w = ct.full((1, 1, 3, 4), 1), ct.asarray([[[0, 1], [0, 2], [0, 1]]], "float32")
    >>> mixer, skip = ct.asarray([[10, 1]], "float32"), ct.full((1,), 0.5)
    >>> y, mixed = ct.b2b_causal_conv1d(x, w, mixer, skip)
    >>> dy = ct.full((1, 1, 4), 1)
    >>> ct.b2b_causal_conv1d_backward(dy, x, w, mixer, skip, mixed).dw_mixer.numpy()
    array([[6., 8.]], dtype=float32)
    """
    if more or unknown or any(one is UNSET for one in (dy, x, w_proj, w_mixer, skip_bias, mixed)):
        return corrected(b2b_causal_conv1d_backward, locals())
    outs = result_slots(out, B2BCausalConvGradients._fields)
    names, arrays = (*OPERANDS, "mixed", "dy"), (x, w_proj, w_mixer, skip_bias, mixed, dy)
    return B2BCausalConvGradients(*execute(_GRADIENT, names, arrays, outs=outs, stream=stream))


def _plan(problem: B2BCausalConvProblem | B2BCausalConvGradientProblem) -> Plan:
    return on_contiguous("b2b_causal_conv1d", problem, _in_place)


def _in_place(problem: Any) -> Plan:
    """Return the plan of a problem with contiguous tensors; cuDNN may add to the gradients of parameters."""
    forward = isinstance(problem, B2BCausalConvProblem)
    names = FORWARD if forward else BACKWARD
    function = f"cudnnB2BCausalConv1d{'Forward' if forward else 'Backward'}"
    require_function("b2b_causal_conv1d", function)
    (n, channels, _, length), code = problem.x.shape, DTYPES[problem.x.dtype].code
    sizes = [n, channels, length, problem.w_proj.shape[2], problem.w_mixer.shape[1], code]
    tensors = tensors_of(problem)
    parameters = () if forward else BACKWARD[-3:]
    sizes += [DTYPES[tensors[name].dtype].code for name in parameters[:1]]
    places = {name: place for place, name in enumerate(tensors)}
    steps = [Step(fill_plan(tensors[name], 0.0), (places[name],)) for name in parameters]
    call = StreamCall(function, [*map(PointerSlot, names), *sizes], names)
    return chained((), [*steps, Step(call, tuple(places[name] for name in names))])


# cuDNN does not document the alignment that it needs, so misaligned operands are copied.
_IMPLEMENTATIONS = (of_problem(_plan, aligned=True),)
_CONV = Operation(
    "two causal convolutions with gates",
    b2b_causal_conv_problem,
    _IMPLEMENTATIONS,
    written=("out", "mixed of out"),
    relayout=False,
)
_GRADIENT = Operation(
    "the gradient of two causal convolutions with gates",
    b2b_causal_conv_problem,
    _IMPLEMENTATIONS,
    written=("out", "dw_proj of out", "dw_mixer of out", "dskip_bias of out"),
    relayout=False,
)
