"""Causal convolutions of sequences, one window for each channel or two with gates, by libcudnn_ext."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Never

from .._bindings.enums import CausalConv1dActivation
from .._hints import UNSET, corrected
from .._lib import Library, load
from ..array import DeviceArray
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.base import Plan, tensors_of
from ..plans.elementwise import fill_plan
from ..plans.program import PointerSlot, Step, chained
from ..plans.stream_call import StreamCall, on_contiguous, require_function
from ..plans.wrappers import on_copies, zero_results
from ..shapes.causal_conv import (
    WITHOUT_BIAS,
    B2BCausalConvGradientProblem,
    B2BCausalConvGradients,
    B2BCausalConvProblem,
    B2BCausalConvResult,
    CausalActivation,
    CausalConvGradients,
    CausalConvProblem,
    b2b_causal_conv_problem,
    causal_conv_problem,
    causal_gradient_dtype,
)
from ..shapes.specs import INT_MAX, TensorSpec, equivalent_strides, nearest_layout, results_of
from ..typing import ArrayLike, Layout, OutLike, StreamLike
from ._call import execute, execute_as
from ._documented import documented
from ._implementations import along, of_problem
from ._operation import Operation

WIDEST_OF_ADJACENT_CHANNELS = 128  # window of the Nwh functions, as cuDNN 9.28 checks it

# In the order of the C functions.
FORWARD, BACKWARD = ("x", "w", "bias", "y"), ("x", "w", "bias", "dy", "dx", "dw", "dbias")


@documented()
def causal_conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *more: Never,
    activation: CausalActivation | None = None,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve each channel of sequences with its own window, which ends at the present time step.

    Elements before the first are 0. With ``silu(s) = s / (1 + exp(-s))`` or the identity ::

        y[n, c, t] = activation(bias[c] + sum(w[c, i] * x[n, c, t - width + 1 + i] for i in range(width)))

    Parameters
    ----------
    x : device array, shape (N, channels, length), float16 | bfloat16 | float32 | float64
        Two layouts are read in place: contiguous in this order, and with adjacent channels, as in a
        transposed view of an array (N, length, channels). For other strides a copy is made.
    w : device array, shape (channels, width), dtype of x
        The last weight of a window meets the present time step. A width of 2 to 8, 16, 32, 64, 128 or 256.
        It is read in place if its memory has the order of x: contiguous, or for adjacent channels a
        transposed view of an array (width, channels).
    bias : device array, shape (channels,), dtype of x, optional
    activation : {None, "silu"}

    Notes
    -----
    ``cudnnCausalConv1dForward``, for adjacent channels ``cudnnCausalConv1dNwhForward``. They need cuDNN 9.22
    and its library libcudnn_ext, which JIT wheels lack; adjacent channels are read in place from cuDNN 9.24
    on and up to a width of 128. cuDNN compiles a kernel for each width, dtype, layout and activation by
    NVRTC with the headers of a CUDA toolkit, in about five seconds, and keeps it until the process ends.

    Examples
    --------
    >>> x, w = ct.asarray([[[1, 2, 3, 4]]], "float32"), ct.asarray([[10, 1]], "float32")
    >>> ct.causal_conv1d(x, w).numpy()
    array([[[ 1., 12., 23., 34.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(causal_conv1d, locals())
    operands = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
    names, arrays = tuple(operands), tuple(operands.values())
    return execute(_CONV, names, arrays, (activation,), outs=(out,), stream=stream)[0]


@documented(causal_conv1d)
def causal_conv1d_backward(
    dy: ArrayLike,
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *more: Never,
    activation: CausalActivation | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> CausalConvGradients[DeviceArray]:
    """Compute the gradients of :func:`causal_conv1d` with regard to the input, the weights and the bias.

    Parameters
    ----------
    dy : device array, shape and dtype of x
        The gradient of the result.

    Returns
    -------
    CausalConvGradients
        ``dx``, shape and dtype of x; ``dw``, shape of w, and ``dbias``, shape of bias, float64 for float64
        operands and float32 for all others; ``dbias`` is None without ``bias``.

    Notes
    -----
    ``cudnnCausalConv1dBackward``, for adjacent channels ``cudnnCausalConv1dNwhBackward``, after dw and dbias
    are set to 0. The sums of dw and dbias have no defined order, so their last bits may vary from run to run,
    and cuDNN has no deterministic alternative. Needs and costs are those of the forward pass.

    Examples
    --------
    >>> x, w = ct.asarray([[[1, 2, 3, 4]]], "float32"), ct.asarray([[10, 1]], "float32")
    >>> dy = ct.asarray([[[0, 0, 1, 0]]], "float32")
    >>> dx, dw, dbias = ct.causal_conv1d_backward(dy, x, w)
    >>> dx.numpy(), dw.numpy()
    (array([[[ 0., 10.,  1.,  0.]]], dtype=float32), array([[2., 3.]], dtype=float32))
    """
    if more or unknown or dy is UNSET or x is UNSET or w is UNSET:
        return corrected(causal_conv1d_backward, locals())
    operands = {"x": x, "w": w} | ({} if bias is None else {"bias": bias}) | {"dy": dy}
    absent = WITHOUT_BIAS if bias is None else ""
    return execute_as(CausalConvGradients, _GRADIENT, operands, (activation,), out, stream, absent)


def _plan(problem: CausalConvProblem) -> Plan:
    """Return the plan of a problem, with copies of operands that do not have the order of its layout."""
    if not problem.x.size:
        return zero_results(results_of(problem))
    if problem.x.size > INT_MAX:
        raise NotSupportedError(f"causal_conv1d counts the {problem.x.size:,} elements of x in 32 bits")
    layout = _layout(problem, load())
    tensors = tensors_of(problem)
    direct = {name: _in_layout(name, spec, layout) for name, spec in tensors.items()}
    changed: dict[str, Any] = dict(direct)
    plan = _in_place(problem._replace(**changed), layout)
    moves = [(spec, None if _alike(spec, direct[name]) else direct[name]) for name, spec in tensors.items()]
    copied = any(target for _, target in moves)
    return on_copies(plan, moves, len(results_of(problem))) if copied else plan


def _layout(problem: CausalConvProblem, library: Library) -> Layout:
    """Return the order in memory that cuDNN reads: that of x if this cuDNN has functions for it."""
    require_function("causal_conv1d", _function(problem, "nchw"))
    nearest = nearest_layout(problem.x)
    both = {"nchw", "nhwc"} <= set(problem.x.layouts)  # one time step, or one channel: windows decide
    if both and not problem.w.layouts and _alike(problem.w, _in_layout("w", problem.w, "nhwc")):
        nearest = "nhwc"
    unsuitable = nearest == "nhwc" and problem.w.shape[1] > WIDEST_OF_ADJACENT_CHANNELS
    return "nchw" if unsuitable or library.why_missing(_function(problem, nearest)) else nearest


def _function(problem: CausalConvProblem, layout: Layout) -> str:
    direction = "Forward" if problem.y else "Backward"
    return f"cudnnCausalConv1d{'Nwh' if layout == 'nhwc' else ''}{direction}"


def _in_layout(name: str, spec: TensorSpec, layout: Layout) -> TensorSpec:
    """Return the spec of a tensor as the functions of a layout read or write it."""
    if name in ("w", "dw") and layout == "nhwc":
        return spec._replace(strides=(1, spec.shape[0]))
    return TensorSpec.packed(spec.shape, spec.dtype, layout if len(spec.shape) == 3 else "nchw")


def _alike(one: TensorSpec, two: TensorSpec) -> bool:
    return equivalent_strides(one.shape, one.strides, two.strides)


def _in_place(problem: CausalConvProblem, layout: Layout) -> Plan:
    """Return the plan of a problem whose tensors are in the order of a layout.

    cuDNN takes a bias and its gradient in every call: a missing bias is zeros, both in the workspace. It adds
    to dw and dbias, which are set to 0 before.
    """
    tensors, temporaries, steps = tensors_of(problem), list[TensorSpec](), list[Step]()
    names = FORWARD if problem.y else BACKWARD
    places = {name: place for place, name in enumerate(tensors)}
    for name in ("bias", "dbias"):
        if name in names and name not in places:
            places[name] = len(places)
            dtype = causal_gradient_dtype(problem.x.dtype) if name == "dbias" else problem.x.dtype
            tensors[name] = TensorSpec.packed(problem.w.shape[:1], dtype)
            temporaries.append(tensors[name])
    zeros = [name for name in ("dw", "dbias") if name in names] + ["bias"] * (problem.bias is None)
    steps = [Step(fill_plan(tensors[name], 0.0), (places[name],)) for name in zeros]
    call = _call(problem, names, layout)
    return chained(temporaries, [*steps, Step(call, tuple(places[name] for name in names))])


def _call(problem: CausalConvProblem, names: Sequence[str], layout: Layout) -> StreamCall:
    """Return the call of a problem; ``names`` are those of its pointers, in the order of the C function."""
    code = DTYPES[problem.x.dtype].code
    wide = () if problem.y else (DTYPES[causal_gradient_dtype(problem.x.dtype)].code,)
    activation = CausalConv1dActivation.SILU if problem.activation else CausalConv1dActivation.IDENTITY
    sizes = (*problem.x.shape, problem.w.shape[1], code, *wide, int(activation))
    return StreamCall(_function(problem, layout), [*map(PointerSlot, names), *sizes], names)


# Misaligned operands are copied: cuDNN does not document the width of its loads.
_IMPLEMENTATIONS = (of_problem(_plan, aligned=True),)
_CONV = Operation(
    "a causal convolution",
    causal_conv_problem,
    _IMPLEMENTATIONS,
    independent=lambda problem: along(problem, (0,)),
    relayout=False,
)
_GRADIENT = Operation(
    "the gradient of a causal convolution",
    causal_conv_problem,
    _IMPLEMENTATIONS,
    written=("out", "dw of out", "dbias of out"),
    relayout=False,
)


# --- two causal convolutions with gates between and behind them in one kernel ------------------------------


B2B_OPERANDS = ("x", "w_proj", "w_mixer", "skip_bias")

# In the order of the C functions.
B2B_FORWARD = (*B2B_OPERANDS, "mixed", "y")
B2B_BACKWARD = (*B2B_OPERANDS, "mixed", "dy", "dx", "dw_proj", "dw_mixer", "dskip_bias")


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
    given = dict(zip(B2B_OPERANDS, (x, w_proj, w_mixer, skip_bias), strict=True))
    return execute_as(B2BCausalConvResult, _B2B, given, (), out, stream)


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
    names, arrays = (*B2B_OPERANDS, "mixed", "dy"), (x, w_proj, w_mixer, skip_bias, mixed, dy)
    given = dict(zip(names, arrays, strict=True))
    return execute_as(B2BCausalConvGradients, _B2B_GRADIENT, given, (), out, stream)


def _b2b_plan(problem: B2BCausalConvProblem | B2BCausalConvGradientProblem) -> Plan:
    return on_contiguous("b2b_causal_conv1d", problem, _b2b_in_place)


def _b2b_in_place(problem: Any) -> Plan:
    """Return the plan of a problem with contiguous tensors; cuDNN may add to the gradients of parameters."""
    forward = isinstance(problem, B2BCausalConvProblem)
    names = B2B_FORWARD if forward else B2B_BACKWARD
    function = f"cudnnB2BCausalConv1d{'Forward' if forward else 'Backward'}"
    require_function("b2b_causal_conv1d", function)
    (n, channels, _, length), code = problem.x.shape, DTYPES[problem.x.dtype].code
    sizes = [n, channels, length, problem.w_proj.shape[2], problem.w_mixer.shape[1], code]
    tensors = tensors_of(problem)
    parameters = () if forward else B2B_BACKWARD[-3:]
    sizes += [DTYPES[tensors[name].dtype].code for name in parameters[:1]]
    places = {name: place for place, name in enumerate(tensors)}
    steps = [Step(fill_plan(tensors[name], 0.0), (places[name],)) for name in parameters]
    call = StreamCall(function, [*map(PointerSlot, names), *sizes], names)
    return chained((), [*steps, Step(call, tuple(places[name] for name in names))])


# cuDNN does not document the alignment that it needs, so misaligned operands are copied.
_B2B_IMPLEMENTATIONS = (of_problem(_b2b_plan, aligned=True),)
_B2B = Operation(
    "two causal convolutions with gates",
    b2b_causal_conv_problem,
    _B2B_IMPLEMENTATIONS,
    written=("out", "mixed of out"),
    relayout=False,
)
_B2B_GRADIENT = Operation(
    "the gradient of two causal convolutions with gates",
    b2b_causal_conv_problem,
    _B2B_IMPLEMENTATIONS,
    written=("out", "dw_proj of out", "dw_mixer of out", "dskip_bias of out"),
    relayout=False,
)
