"""Causal convolutions of sequences, one window for each channel, and their gradients, by libcudnn_ext."""

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
from ..plans.stream_call import StreamCall, require_function
from ..plans.wrappers import on_copies, zero_results
from ..shapes.causal_conv import (
    WITHOUT_BIAS,
    CausalActivation,
    CausalConvGradients,
    CausalConvProblem,
    causal_conv_problem,
    causal_gradient_dtype,
)
from ..shapes.checks import result_slots
from ..shapes.specs import INT_MAX, TensorSpec, equivalent_strides, nearest_layout, results_of
from ..typing import ArrayLike, Layout, OutLike, StreamLike
from ._call import execute
from ._documented import documented
from ._fallback import of_problem
from ._operation import Operation
from ._pieces import along

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
    names, arrays = tuple(operands), tuple(operands.values())
    outs = result_slots(out, CausalConvGradients._fields, absent=WITHOUT_BIAS if bias is None else "")
    dx, dw, *rest = execute(_GRADIENT, names, arrays, (activation,), outs=outs, stream=stream)
    return CausalConvGradients(dx, dw, rest[0] if rest else None)


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
