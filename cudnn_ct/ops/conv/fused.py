"""A convolution with bias, residual and activation in one."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import algo_cache, context
from ..._config import config
from ...array import DeviceArray
from ...array_creation import as_operand
from ...autotune.request import AlgoRequest
from ...context import Context
from ...cuda import stream as streams
from ...plans.wrappers import ZeroOrScale
from ...shapes.fused import FusedConv, fused_problem
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._call import (
    PreparedCall,
    SinglePlan,
    as_key,
    contiguous,
    enum_names,
    freeze,
    remember,
    representable,
    run,
    stream_of,
)
from . import candidates
from .call import ConvParams, problem_of, request_of, settled_arguments
from .fused_legacy import UnfusedPlan

__all__ = ["Epilogue", "call_of_fused", "conv_bias_activation", "fused_of"]


def conv_bias_activation(
    x: Any,
    w: Any,
    b: Any,
    *,
    z: Any = None,
    activation: Any = "relu",
    coef: float = 0,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    algo: Any = None,
    precision: str | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha1: float = 1,
    alpha2: float = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Convolve, add and activate: ``y = act(alpha1 * conv(x, w) + alpha2 * z + b)``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : device array, shape (K, C / groups, *window), dtype of x
    b : device array, shape (K,), dtype of x; or None
        A bias per channel of the result.
    z : device array, shape of the result, dtype of x, optional
        A residual.
    activation : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "identity"}
    coef : float
        The ceiling of ``"clipped_relu"``, the alpha of ``"elu"``.
    padding, stride, dilation, groups, mode
        As in :func:`conv`.
    algo, precision, deterministic, workspace_limit, strict
        As in :func:`conv`. Names are those of the forward direction.
    alpha1, alpha2 : float
        Factors of the convolution and of the residual.
    out : device array, shape of the result and dtype of x, optional
        Where the result goes. It must overlap none of the operands.
    stream : optional
        As in :func:`conv`.

    Returns
    -------
    DeviceArray, shape (N, K, *out), as :func:`conv_output_shape` has it; or ``out``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`conv`; ValueError also where b or z has not the shape that the result asks for.

    Notes
    -----
    A fused graph, ``cudnnBackendExecute``, or ``cudnnConvolutionBiasActivationForward``; where cuDNN has
    neither for a problem, a convolution followed by ``cudnnAddTensor`` and ``cudnnActivationForward``, which
    rounds in between. The formula is that of cuDNN's manual for the fused call; gelu is that with erf.

    Some algorithms sum in an order that varies from run to run: ``deterministic=True`` leaves them out.
    Others differ in their order, and a policy that times may choose another one in another process.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w, b = ct.asarray([[[1, -1]]], "float32"), ct.asarray([3], "float32")
    >>> ct.conv_bias_activation(x, w, b).numpy()
    array([[[2., 1., 0.]]], dtype=float32)
    """
    arguments = (
        padding, stride, dilation, groups, mode, precision, algo, deterministic, workspace_limit, strict,
    )  # fmt: skip
    where = stream_of(x, "x", stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        given = {"x": x, "w": w, "z": z, "b": b}
        inputs = {
            name: as_operand(array, name, where)
            for name, array in given.items()
            if array is not None or name in ("x", "w")
        }
        result = None if out is None else as_operand(out, "out", where, written=True)
        epilogue = Epilogue(activation, coef, alpha1, alpha2)
        call = _prepared(ctx, inputs, result, arguments, epilogue)
        arrays = tuple(inputs.values())
        if call.pack:
            arrays = tuple(contiguous(array, where) for array in arrays)
        return run(ctx, call, arrays, result, 1, 0, out)
    finally:
        streams.restore_device(previous)


class Epilogue(NamedTuple):
    """What follows a convolution, as it was written."""

    activation: Any
    coef: Any
    alpha1: Any
    alpha2: Any


def _prepared(
    ctx: Context,
    inputs: dict[str, DeviceArray],
    result: DeviceArray | None,
    arguments: tuple[Any, ...],
    epilogue: Epilogue,
) -> PreparedCall:
    """Look the call up by its arguments as they were written; prepare it the first time."""
    specs = {name: array.spec for name, array in inputs.items()}
    pointers = 0 if result is None else result.pointer
    for array in inputs.values():
        pointers |= array.pointer
    aligned = not pointers % ALIGNMENT
    out = None if result is None else result.spec
    key = ("fused", tuple(specs.items()), out, arguments, epilogue, aligned, config.snapshot)
    try:
        call: PreparedCall | None = ctx.calls.get(key)
    except TypeError:  # no key: a list, which is as good as a tuple, or something that is refused
        return _prepared(ctx, inputs, result, as_key(arguments), Epilogue(*as_key(epilogue)))
    if call is None:
        now, after = settled_arguments(arguments), enum_names(freeze(epilogue), "activation")
        if now is not arguments or after is not epilogue:
            return _prepared(ctx, inputs, result, now, after)
    if call is None:
        told = ConvParams(*arguments)
        problem, wide = fused_of(specs, out, told, epilogue, aligned)
        wanted = request_of(told, problem)
        call = remember(ctx.calls, key, call_of_fused(ctx, problem, wide, tuple(specs.values()), wanted))
    return call


def fused_of(
    specs: dict[str, TensorSpec],
    out: TensorSpec | None,
    arguments: ConvParams,
    epilogue: Epilogue,
    aligned: bool,
) -> tuple[FusedConv, tuple[TensorSpec, ...]]:
    """The problem that operands of these specs make, by their names in the order of a run, and its inputs."""
    conv, (x, w) = problem_of("forward", specs["x"], specs["w"], out, None, arguments, "", aligned)
    added = {name: representable(specs[name]) for name in ("z", "b") if name in specs}
    problem = fused_problem(conv, added.get("b"), added.get("z"), **epilogue._asdict())
    return problem, (x, w, *added.values())


def call_of_fused(
    ctx: Context,
    problem: FusedConv,
    inputs: tuple[TensorSpec, ...],
    given: tuple[TensorSpec, ...],
    wanted: AlgoRequest,
) -> PreparedCall:
    """Choose how to compute a fused problem, as :func:`.convolve.call_of` does for a convolution."""
    choice: Any = _without_terms(problem) or algo_cache.select(problem, candidates, ctx, wanted)
    return PreparedCall.of(problem, inputs, (problem.result,), choice, pack=inputs != given)


def _without_terms(problem: FusedConv) -> SinglePlan | None:
    """The plan where the sums of the convolution have no terms, or there is no result at all."""
    conv = problem.conv
    if not conv.y.size:
        return SinglePlan(ZeroOrScale(conv.y))
    if conv.x.size and conv.w.size:
        return None
    return SinglePlan(UnfusedPlan(problem, ZeroOrScale(conv.y)))
