"""Instance normalisation and its gradients: batch normalisation of one image with N * C channels."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from ...array import DeviceArray
from ...context import Context
from ...plans.base import Plan
from ...plans.call import CallPlan
from ...plans.chain import ChainPlan, Step
from ...plans.float32 import PlanMaker
from ...shapes.checks import one_dtype, result_spec, same_shape
from ...shapes.layer import describe
from ...shapes.norm import (
    BatchNormGradients,
    BatchNormResult,
    NormGradient,
    NormTraining,
    check_epsilon,
    check_instance_norm_parameters,
)
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, StreamLike
from .._call import Operation, execute
from .._documented import documented
from .._fallback import Implementation
from ..reduce.reduce import reduce
from .plans import GRADIENT, TRAINING

__all__ = ["instance_norm", "instance_norm_backward"]


@documented()
def instance_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> BatchNormResult[DeviceArray]:
    """Normalise each channel of each image by its own mean and variance (Ulyanov et al. 2016).

    As a formula ::

        y = alpha * (scale * (x - mean) / sqrt(var + epsilon) + bias) + beta * out

    Parameters
    ----------
    x : device array, 3 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        An array that is not contiguous in this order is copied first, on the device.
    scale, bias : device array, shape (C,)
        float32 for half precision, else of the dtype of x.
    epsilon : float, at least 0

    Returns
    -------
    BatchNormResult
        ``y``, DeviceArray of shape and dtype of x, or ``out`` as one; ``mean`` and
        ``invstd = 1 / sqrt(var + epsilon)``, DeviceArrays of shape (N, C, 1, ...) and the dtype of scale. The
        variance is divided by the number of elements, not by one less.

    Notes
    -----
    ``cudnnBatchNormalizationForwardTrainingEx`` of (1, N * C, ...), after ``cudnnAddTensor`` has copied scale
    and bias for each image. By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[0, 2], [5, 5]]], "float32")  # one image with two channels
    >>> scale, bias = ct.asarray([1, 1], "float32"), ct.asarray([0, 3], "float32")
    >>> ct.instance_norm(x, scale, bias).y.numpy().round(3)
    array([[[-1.,  1.],
            [ 3.,  3.]]], dtype=float32)
    """
    given, outs = (x, scale, bias), (out, None, None)
    results = execute(_FORWARD, ("x", "scale", "bias"), given, (epsilon,), alpha, beta, outs, stream)
    return BatchNormResult(*results)


@documented(instance_norm)
def instance_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`instance_norm`.

    With ``n = (x - mean) * invstd``, and means over one channel of one image ::

        dbias = sum(dy)        dscale = sum(dy * n)
        dx = alpha * scale * invstd * (dy - mean(dy) - n * mean(dy * n)) + beta * out

    Parameters
    ----------
    dy : device array, shape and dtype of x
    mean, invstd : device array, shape (N, C, 1, ...), both or neither, optional
        Results of :func:`instance_norm`. By default cuDNN computes them from x with ``epsilon``.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x, or ``out`` as one; ``dscale`` and ``dbias``, as scale;
        ``dz`` is None.

    Notes
    -----
    ``cudnnBatchNormalizationBackwardEx`` of (1, N * C, ...), and :func:`cudnn_ct.reduce` over the images for
    ``dscale`` and ``dbias``. The memory between them is allocated in each call, so it cannot be captured into
    a CUDA graph. By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x, dy = ct.asarray([[[0, 2, 4]]], "float32"), ct.asarray([[[0, 3, 0]]], "float32")
    >>> ct.instance_norm_backward(dy, x, ct.asarray([1], "float32")).dbias.numpy()
    array([3.], dtype=float32)
    """
    if (mean is None) != (invstd is None):
        raise ValueError("mean and invstd must both be given, or neither")
    operands = {"x": x, "dy": dy, "scale": scale}
    if mean is not None and invstd is not None:
        operands |= {"mean": mean, "invstd": invstd}
    names, given, outs = tuple(operands), tuple(operands.values()), (out, None, None)
    dx, *of_images = execute(_BACKWARD, names, given, (epsilon,), alpha, beta, outs, stream)
    dscale, dbias = (reduce(gradient, axis=0, stream=stream) for gradient in of_images)
    return BatchNormGradients(dx, dscale, dbias, None)


# --- problems ----------------------------------------------------------------------------------------------


class InstanceNormProblem(NamedTuple):
    """An instance normalisation."""

    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    y: TensorSpec
    mean: TensorSpec
    invstd: TensorSpec
    epsilon: float

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return self.y, self.mean, self.invstd

    def __str__(self) -> str:
        return describe("instance normalisation", self)


class InstanceNormGradient(NamedTuple):
    """The gradients of an instance normalisation; ``dscale`` and ``dbias`` are those of each image."""

    x: TensorSpec
    dy: TensorSpec
    scale: TensorSpec
    mean: TensorSpec | None
    invstd: TensorSpec | None
    dx: TensorSpec
    dscale: TensorSpec
    dbias: TensorSpec
    epsilon: float

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return self.dx, self.dscale, self.dbias

    def __str__(self) -> str:
        return describe("gradient of instance normalisation", self)


Specs = dict[str, TensorSpec]
Outs = tuple[TensorSpec | None, ...]


def _forward_problem(specs: Specs, outs: Outs, epsilon: Any) -> InstanceNormProblem:
    x, scale, bias = (specs[name] for name in ("x", "scale", "bias"))
    shape = check_instance_norm_parameters(x, scale=scale, bias=bias)
    statistics = TensorSpec.packed(shape, scale.dtype)
    y = result_spec(x.shape, x, out=outs[0])
    return InstanceNormProblem(x, scale, bias, y, statistics, statistics, check_epsilon(epsilon))


def _backward_problem(specs: Specs, outs: Outs, epsilon: Any) -> InstanceNormGradient:
    x, dy, scale = (specs[name] for name in ("x", "dy", "scale"))
    one_dtype("instance normalisation", x=x.dtype, dy=dy.dtype)
    same_shape(x=x.shape, dy=dy.shape)
    statistics = {name: specs[name] for name in ("mean", "invstd") if name in specs}
    check_instance_norm_parameters(x, scale=scale, **statistics)
    of_images = TensorSpec.packed(x.shape[:2], scale.dtype)
    dx = result_spec(x.shape, x, dy, out=outs[0])
    mean, invstd = (statistics.get(name) for name in ("mean", "invstd"))
    return InstanceNormGradient(x, dy, scale, mean, invstd, dx, of_images, of_images, check_epsilon(epsilon))


# --- implementations ---------------------------------------------------------------------------------------


def _forward_plan(make: PlanMaker, problem: InstanceNormProblem, context: Context) -> Plan | None:
    """Return a plan that copies the parameters for each image, and normalises a batch of one image."""
    if not _in_c_order(*problem[:4]):
        return None
    x, y, statistics = (_one_image(spec) for spec in (problem.x, problem.y, problem.mean))
    step = NormTraining(
        *(x, statistics, statistics, None, y, statistics, statistics, None, None),
        *("spatial", problem.epsilon, 1.0, None, True),
    )
    plan = make(step, context)
    if plan is None:
        return None
    # Pointers: x, scale, bias, y, mean, invstd, and the copies of scale and bias.
    tiled, copy = _for_each_image(problem.scale, problem.x)
    steps = [Step(copy, (1, 6)), Step(copy, (2, 7)), Step(plan, (0, 6, 7, 3, 4, 5))]
    return ChainPlan([tiled, tiled], steps)


def _backward_plan(make: PlanMaker, problem: InstanceNormGradient, context: Context) -> Plan | None:
    """Return a plan that copies the scale for each image, and computes the gradients of one image."""
    if not _in_c_order(*(spec for spec in problem[:6] if spec)):
        return None
    x, dy, dx = (_one_image(spec) for spec in (problem.x, problem.dy, problem.dx))
    n, channels, *size = problem.x.shape
    parameter = TensorSpec.packed((1, n * channels, *(1 for _ in size)), problem.scale.dtype)
    given = parameter if problem.mean else None
    step = NormGradient(
        *(x, dy, parameter, given, given, None, dx, parameter, parameter, None),
        *("spatial", problem.epsilon, None),
    )
    plan = make(step, context)
    if plan is None:
        return None
    # Pointers: x, dy, scale, perhaps mean and invstd, dx, dscale, dbias, and the copy of the scale.
    tiled, copy = _for_each_image(problem.scale, problem.x)
    last = 8 if problem.mean else 6
    return ChainPlan([tiled], [Step(copy, (2, last)), Step(plan, (0, 1, last, *range(3, last)))])


def _in_c_order(*specs: TensorSpec) -> bool:
    return all("nchw" in spec.layouts for spec in specs)


def _one_image(spec: TensorSpec) -> TensorSpec:
    n, channels, *image = spec.shape
    return TensorSpec.packed((1, n * channels, *image), spec.dtype)


def _for_each_image(parameter: TensorSpec, x: TensorSpec) -> tuple[TensorSpec, Plan]:
    """Return the spec of a parameter with a copy for each image, and a plan that makes the copies."""
    tiled = TensorSpec.packed((*x.shape[:2], 1, 1), parameter.dtype)
    channels = TensorSpec.packed((1, *tiled.shape[1:]), parameter.dtype)
    return tiled, CallPlan("cudnnAddTensor", (), [(0, channels)], tiled)


def _wrapped(wrap: Any, implementations: tuple[Implementation, ...]) -> tuple[Implementation, ...]:
    return tuple(one._replace(make=partial(wrap, one.make)) for one in implementations)


_FORWARD = Operation(
    "an instance normalisation",
    _forward_problem,
    _wrapped(_forward_plan, TRAINING),
    written=("out", "mean", "invstd"),
)
_BACKWARD = Operation(
    "the gradient of an instance normalisation",
    _backward_problem,
    _wrapped(_backward_plan, GRADIENT),
    written=("out", "dscale", "dbias"),
)
