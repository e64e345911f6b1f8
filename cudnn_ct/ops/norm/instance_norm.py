"""Instance normalisation and its gradients: batch normalisation of one image with N * C channels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Never

from ..._hints import UNSET, corrected
from ..._lib import load
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...plans.base import Plan, tensors_of
from ...plans.elementwise import expand_plan
from ...plans.program import CallPlan, Step, chained
from ...plans.wrappers import PlanMaker
from ...shapes import norm as rules
from ...shapes.checks import result_slots
from ...shapes.norm import BatchNormGradients, BatchNormResult
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, OutLike, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._implementations import Implementation, Split, along
from .._operands import present, results_of_calls, stream_of
from .._operation import Operation
from ..reduce.reduce import reduce
from .plans import GRADIENT, TRAINING

_GRADIENTS = ("out", "dscale of out", "dbias of out")


@documented()
def instance_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
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

    Returns
    -------
    BatchNormResult
        ``y``, DeviceArray of shape and dtype of x; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``,
        DeviceArrays of shape (N, C, 1, ...) and the dtype of scale. The variance is divided by the
        number of elements, not by one less.

    Notes
    -----
    ``cudnnBatchNormalizationForwardTrainingEx`` of (1, N * C, ...), after ``cudnnAddTensor`` has copied scale
    and bias for each image.

    Examples
    --------
    >>> x = ct.asarray([[[0, 2], [5, 5]]], "float32")  # one image with two channels
    >>> scale, bias = ct.asarray([1, 1], "float32"), ct.asarray([0, 3], "float32")
    >>> ct.instance_norm(x, scale, bias).y.numpy().round(3)
    array([[[-1.,  1.],
            [ 3.,  3.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET or bias is UNSET:
        return corrected(instance_norm, locals())
    given = {"x": x, "scale": scale, "bias": bias}
    return execute_as(BatchNormResult, _FORWARD, given, (epsilon,), out, stream, alpha=alpha, beta=beta)


@documented(instance_norm)
def instance_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *more: Never,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`instance_norm`.

    With ``n = (x - mean) * invstd``, and means over one channel of one image ::

        dbias = sum(dy)        dscale = sum(dy * n)
        dx = alpha * scale * invstd * (dy - mean(dy) - n * mean(dy * n)) + beta * out

    Parameters
    ----------
    mean, invstd : device array, shape (N, C, 1, ...), both or neither, optional
        Results of :func:`instance_norm`. By default cuDNN computes them from x with ``epsilon``.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, as scale; ``dz`` is None.

    Notes
    -----
    ``cudnnBatchNormalizationBackwardEx`` of (1, N * C, ...), and :func:`cudnn_ct.reduce` over the images for
    ``dscale`` and ``dbias``. The memory between them is allocated in each call, so it cannot be captured into
    a CUDA graph.

    Examples
    --------
    >>> x, dy = ct.asarray([[[0, 2, 4]]], "float32"), ct.asarray([[[0, 3, 0]]], "float32")
    >>> ct.instance_norm_backward(dy, x, ct.asarray([1], "float32")).dbias.numpy()
    array([3.], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET:
        return corrected(instance_norm_backward, locals())
    operands = {"x": x, "dy": dy, "scale": scale} | present(mean=mean, invstd=invstd)
    names, given = tuple(operands), tuple(operands.values())
    dx_out, *sums = result_slots(out, BatchNormGradients._fields, absent=rules.WITHOUT_DZ)
    if any(one is not None for one in sums):
        stream = where = stream_of(x, "x", stream, (*given, *sums))
        arrays = [as_operand(array, name, where) for name, array in operands.items()]
        x_spec, _, scale_spec = (array.spec for array in arrays[:3])
        expected = dict(zip(_GRADIENTS, (x_spec, scale_spec, scale_spec), strict=True))
        dx_out, *sums = results_of_calls((dx_out, *sums), expected, arrays, where)
        given = tuple(arrays)
    outs = (dx_out, None, None)
    dx, *of_images = execute(_BACKWARD, names, given, (epsilon,), alpha, beta, outs, stream)
    dscale, dbias = (
        reduce(gradient, axis=0, out=one, stream=stream)
        for gradient, one in zip(of_images, sums, strict=True)
    )
    return BatchNormGradients(dx, dscale, dbias, None)


def _one_image(make: PlanMaker, problem: Any, context: Context) -> Plan | None:
    """Return a plan that copies the parameters for each image, and normalises a batch of one image."""
    tensors = tensors_of(problem)
    if not all("nchw" in spec.layouts for spec in tensors.values()):
        return None
    n, channels, *size = problem.x.shape
    data = (1, n * channels, *size)
    parameter = (1, n * channels, *(1 for _ in size))
    views = {
        name: TensorSpec.packed(data if spec.shape == problem.x.shape else parameter, spec.dtype)
        for name, spec in tensors.items()
    }
    if (plan := make(problem._replace(**views, mode="spatial"), context)) is None:
        return None
    copied = [place for place, name in enumerate(tensors) if name in ("scale", "bias")]
    of_channels, of_images = (
        TensorSpec.packed((images, channels, 1, 1), problem.scale.dtype) for images in (1, n)
    )
    copy: Plan = expand_plan(of_channels, of_images)
    if not load().lacks("ops"):
        copy = CallPlan("cudnnAddTensor", (), [(0, of_channels)], of_images)
    places, steps = list(range(len(tensors))), []
    for copies, place in enumerate(copied, len(tensors)):
        steps.append(Step(copy, (place, copies)))
        places[place] = copies
    return chained([of_images] * len(copied), [*steps, Step(plan, tuple(places))])


def _of_one_image(implementations: tuple[Implementation, ...]) -> tuple[Implementation, ...]:
    return tuple(one._replace(make=partial(_one_image, one.make)) for one in implementations)


def _images(problem: Any) -> Iterator[Split]:
    """Return the split along the images; the gradients of the parameters, (N, C), are those of each image."""
    (split,) = along(problem, (0,))
    yield split | {name: 0 for name in ("dscale", "dbias") if hasattr(problem, name)}


_FORWARD = Operation(
    "an instance normalisation",
    rules.instance_norm_training,
    _of_one_image(TRAINING),
    independent=_images,
    written=("out", "mean of out", "invstd of out"),
)
_BACKWARD = Operation(
    "the gradient of an instance normalisation",
    rules.instance_norm_gradient,
    _of_one_image(GRADIENT),
    independent=_images,
    written=_GRADIENTS,
)
