"""Group normalisation and its gradients, made of calls of other normalisations."""

from __future__ import annotations

from math import prod
from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes import group_norm as rules
from ...shapes.group_norm import GroupNorm, GroupNormGradient
from ...shapes.norm import WITHOUT_DZ, BatchNormGradients, BatchNormResult
from ...typing import ArrayLike, OutLike, StreamLike
from .._call import execute_as
from .._compose import Parts, of_calls
from .._documented import documented
from .._operands import present
from .._operation import Operation
from ..reduce.reduce import reduce
from ..tensor import op_tensor
from .instance_norm import instance_norm, instance_norm_backward
from .norm import batch_norm_backward, batch_norm_inference


@documented()
def group_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    groups: int = 1,
    epsilon: float = 1e-5,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormResult[DeviceArray]:
    """Normalise groups of channels of each image by their own mean and variance (Wu and He 2018).

    As a formula, with the mean and the variance of the group of each channel in each image ::

        y = scale * (x - mean) / sqrt(var + epsilon) + bias

    Parameters
    ----------
    x : device array, 2 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        An array that is not contiguous in this order is copied first, on the device.
    scale, bias : device array, shape (C,)
        float32 for half precision, else of the dtype of x.
    groups : int
        Number of groups of adjacent channels; it divides C.

    Returns
    -------
    BatchNormResult
        ``y``, DeviceArray of shape and dtype of x; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``,
        DeviceArrays of shape (N, groups) and the dtype of scale. The variance is divided by the number of
        elements, not by one less.

    Notes
    -----
    cuDNN has no function for it. ``cudnnBatchNormalizationForwardTrainingEx`` of (1, N * groups, ...), as in
    :func:`instance_norm`, computes the statistics, and ``cudnnBatchNormalizationForwardInference`` of
    (1, N * C, ...) the result, so x is read twice.

    Examples
    --------
    >>> x = ct.asarray([[[0, 2], [4, 6], [1, 1], [1, 1]]], "float32")  # one image with two groups
    >>> ct.group_norm(x, ct.full((4,), 1), ct.zeros((4,)), groups=2).mean.numpy()
    array([[3., 1.]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET or bias is UNSET:
        return corrected(group_norm, locals())
    given = {"x": x, "scale": scale, "bias": bias}
    return execute_as(BatchNormResult, _FORWARD, given, (groups, epsilon), out, stream)


@documented(group_norm)
def group_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *more: Never,
    groups: int = 1,
    epsilon: float = 1e-5,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`group_norm`.

    With ``n = (x - mean) * invstd``, means over the elements of a group, and sums over images and pixels ::

        dbias = sum(dy)        dscale = sum(dy * n)        d = scale * dy
        dx = invstd * (d - mean(d) - n * mean(d * n))

    Parameters
    ----------
    mean, invstd : device array, shape (N, groups), both or neither, optional
        Results of :func:`group_norm`. By default they are computed from x with ``epsilon``.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, as scale; ``dz`` is None.

    Notes
    -----
    ``cudnnBatchNormalizationBackwardEx`` of (1, N * C, ...) and :func:`reduce` compute ``dscale`` and
    ``dbias``; the same of (1, N * groups, ...) computes ``dx`` from ``scale * dy`` in the dtype of x.

    Examples
    --------
    >>> x, dy = ct.asarray([[[0, 2, 4]]], "float32"), ct.asarray([[[0, 3, 0]]], "float32")
    >>> ct.group_norm_backward(dy, x, ct.full((1,), 1)).dbias.numpy()
    array([3.], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET:
        return corrected(group_norm_backward, locals())
    operands = {"x": x, "dy": dy, "scale": scale} | present(mean=mean, invstd=invstd)
    params = (groups, epsilon)
    return execute_as(BatchNormGradients, _BACKWARD, operands, params, out, stream, WITHOUT_DZ)


# --- definitions -------------------------------------------------------------------------------------------


class _Views:
    """Shapes in which other operations see images, and parameters of their channels."""

    def __init__(self, problem: GroupNorm | GroupNormGradient, parts: Parts) -> None:
        n, channels, *size = problem.x.shape
        self.rows = (n, problem.groups, channels // problem.groups, prod(size))
        self.statistics = (n, problem.groups, 1, 1)
        self.image = (1, n * channels, prod(size), 1)
        self.channels = (n, problem.groups, channels // problem.groups)
        self._parts, self._dtype = parts, problem.scale.dtype

    def filled(self, shape: tuple[int, ...], value: float) -> DeviceArray:
        """Return an array of a number."""
        return self._parts.filled(shape, self._dtype, value)

    def of_channels(self, parameter: DeviceArray, factor: DeviceArray | None = None) -> DeviceArray:
        """Return a parameter for each channel of each image, times a factor."""
        n, groups, size = self.channels
        each = op_tensor(self.filled(self.channels, 0), self._along(parameter), op="add")
        if factor is not None:
            each = op_tensor(each, self._along(factor), op="mul")
        return each.reshape((n * groups * size,))

    def _along(self, parameter: DeviceArray) -> DeviceArray:
        """Return a view with axes of length 1, which are repeated."""
        n, groups, size = self.channels
        of_groups = parameter.size == n * groups and len(parameter.shape) > 1
        return parameter.reshape((n, groups, 1) if of_groups else (1, groups, size))


def _forward(problem: GroupNorm, parts: Parts, **at: Any) -> None:
    views, of_groups = _Views(problem, parts), (problem.groups,)
    x, mean, invstd = at["x"], at["mean"], at["invstd"]
    instance_norm(
        x.reshape(views.rows),
        views.filled(of_groups, 1),
        views.filled(of_groups, 0),
        epsilon=problem.epsilon,
        out=(at["y"].reshape(views.rows), mean.reshape(views.statistics), invstd.reshape(views.statistics)),
    )
    batch_norm_inference(
        x.reshape(views.image),
        views.of_channels(at["scale"], invstd),
        views.of_channels(at["bias"]),
        views.of_channels(mean),
        views.filled(views.image[1:2], 1),
        epsilon=0,
        out=at["y"].reshape(views.image),
    )


def _backward(problem: GroupNormGradient, parts: Parts, **at: Any) -> None:
    if not problem.x.size:
        parts.fill(at["dscale"], 0)
        parts.fill(at["dbias"], 0)
        return
    views, of_groups = _Views(problem, parts), (problem.groups,)
    rows, image = (
        {name: at[name].reshape(shape) for name in ("x", "dy", "dx")} for shape in (views.rows, views.image)
    )
    ones, zeros = views.filled(of_groups, 1), views.filled(of_groups, 0)
    if problem.mean is None:
        statistics = instance_norm(
            rows["x"], ones, zeros, epsilon=problem.epsilon, out=(rows["dx"], None, None)
        )
        mean, invstd = (one.reshape(views.channels[:2]) for one in statistics[1:])
    else:
        mean, invstd = at["mean"], at["invstd"]
    n, channels = problem.x.shape[:2]
    one, none = (views.filled(views.image[1:2], value) for value in (1, 0))
    sums = batch_norm_backward(
        image["dy"],
        image["x"],
        one,
        views.of_channels(mean),
        views.of_channels(invstd),
        out=(image["dx"], None, None),
    )
    for of_images, total in ((sums.dscale, at["dscale"]), (sums.dbias, at["dbias"])):
        reduce(of_images.reshape((n, channels)), axis=0, out=total)
    scaled = batch_norm_inference(image["dy"], views.of_channels(at["scale"]), none, none, one, epsilon=0)
    instance_norm_backward(
        scaled.reshape(views.rows),
        rows["x"],
        ones,
        mean.reshape(views.statistics),
        invstd.reshape(views.statistics),
        out=(rows["dx"], None, None),
    )


_FORWARD = Operation(
    "a group normalisation",
    rules.group_norm,
    compose=of_calls(_forward),
    written=("out", "mean of out", "invstd of out"),
)
_BACKWARD = Operation(
    "the gradient of a group normalisation",
    rules.group_norm_gradient,
    compose=of_calls(_backward),
    written=("out", "dscale of out", "dbias of out"),
)
