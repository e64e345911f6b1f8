"""A convolution with bias, residual and activation in one."""

from __future__ import annotations

from enum import Enum
from typing import Any, Never

from ..._hints import UNSET, corrected
from ..._lib import load
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...plans.wrappers import zero_or_scale
from ...shapes.fused import FusedConv, fused_problem
from ...shapes.specs import TensorSpec
from ...typing import Algo, ArrayLike, ConvMode, FusedActivation, Padding, PerAxis, Precision, StreamLike
from .._call import execute
from .._documented import documented
from .._operands import present
from .._operation import Operation, Select, enum_names, freeze
from .call import CONV, ConvParams, request_of, select
from .conv import conv
from .legacy import unfused_plan


@documented(conv)
def conv_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    residual: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha1: float = 1,
    alpha2: float = 1,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve, add and activate: ``y = act(alpha1 * conv(x, w) + alpha2 * residual + bias)``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    bias : device array, shape (K,), dtype of x; or None
        Bias per channel of the result.
    residual : device array, shape of the result, dtype of x, optional
    activation : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "silu", "identity"}
    coefficient : float
        Ceiling of ``"clipped_relu"``, alpha of ``"elu"``, beta of ``"swish"``, for which 0 stands for 1.
    alpha1 : float
        Factor of the convolution.
    alpha2 : float
        Factor of the residual.
    out : device array, shape of the result and dtype of x, optional
        Destination of the result. It must not overlap an operand.

    Returns
    -------
    DeviceArray, shape (N, K, *out) of :func:`conv_output_shape`; or ``out`` as one

    Notes
    -----
    A fused graph, ``cudnnBackendExecute``, or ``cudnnConvolutionBiasActivationForward``; if cuDNN has neither
    for a problem, a convolution followed by ``cudnnAddTensor`` and ``cudnnActivationForward``, which round
    intermediate values. The formula is that of cuDNN's manual for the fused call; gelu is that with erf.

    Some algorithms sum in an order that varies from run to run: ``deterministic=True`` excludes them. Other
    algorithms differ in their order of sums, and autotuning may select a different one in another process.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w, b = ct.asarray([[[1, -1]]], "float32"), ct.asarray([3], "float32")
    >>> ct.conv_bias_activation(x, w, b).numpy()
    array([[[2., 1., 0.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET or bias is UNSET:
        return corrected(conv_bias_activation, locals())
    given = {"x": x, "w": w} | present(residual=residual, bias=bias)
    params = (
        padding, stride, dilation, groups, mode, precision, algo, deterministic, workspace_limit, strict,
        activation, coefficient, alpha1, alpha2,
    )  # fmt: skip
    return execute(FUSED, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


_CONV = len(ConvParams._fields)  # so many arguments come before those of the fused operations


def _problem(specs: dict[str, TensorSpec], outs: Any, *params: Any, **facts: Any) -> FusedConv:
    operands = {name: specs[name] for name in ("x", "w")}
    conv = CONV["forward"].problem(operands, outs, None, *params[:_CONV], **facts)
    return fused_problem(conv, specs.get("bias"), specs.get("residual"), *params[_CONV:])


def _select(problem: FusedConv, params: tuple[Any, ...]) -> Select:
    conv = problem.conv
    empty: Any = None
    if not conv.y.size or not (conv.x.size and conv.w.size):  # the sums of the convolution have no terms
        zero, lacks = zero_or_scale(conv.y), load().lacks("ops")
        if conv.y.size and lacks:
            raise NotSupportedError(f"x {conv.x} and w {conv.w} give no terms to sum: the epilogue {lacks}")
        empty = unfused_plan(problem, zero) if conv.y.size else zero
    return select(problem, empty, request_of(ConvParams(*params[:_CONV]), problem))


def _freeze(params: tuple[Any, ...]) -> tuple[Any, ...]:
    now: tuple[Any, ...] = freeze(params)
    activation, *factors = now[_CONV:]
    name = activation.name if isinstance(activation, Enum) else activation
    return (*enum_names(ConvParams(*now[:_CONV]), "mode", "precision", "algo"), name, *factors)


FUSED = Operation("a convolution", _problem, select=_select, freeze=_freeze)
