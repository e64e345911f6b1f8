"""RMS normalisation and its gradients."""

from __future__ import annotations

from typing import Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes.layer_norm import RMSNormGradients, RMSNormResult
from ...shapes.parse import as_bool
from ...typing import Algo, ArrayLike, OutLike, StreamLike
from .._documented import documented
from .layer_norm import layer_norm
from .row_norm import RMS, RMS_GRADIENT, row_norm_backward, row_norm_forward


@documented(layer_norm)
def rms_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike | None = None,
    *more: Never,
    epsilon: float = 1e-5,
    training: bool = True,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> RMSNormResult[DeviceArray]:
    """Divide the last axes of x by their root mean square (Zhang and Sennrich 2019).

    As a formula, with the mean over the axes of scale ::

        y = scale * x / sqrt(mean(x ** 2) + epsilon) + bias

    Returns
    -------
    RMSNormResult
        ``y``, DeviceArray of shape and dtype of x; ``invrms = 1 / sqrt(mean(x ** 2) + epsilon)``, a float32
        DeviceArray with the shape of x, in which normalised axes have length 1; None without ``training``.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``. cuDNN has no engine for float64.

    Examples
    --------
    >>> x, scale = ct.asarray([[3, 4], [6, 8]], "float32"), ct.asarray([1, 2], "float32")
    >>> ct.rms_norm(x, scale).y.numpy().round(3)
    array([[0.849, 2.263],
           [0.849, 2.263]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET:
        return corrected(rms_norm, locals())
    choice = (algo, deterministic, workspace_limit)
    fields = RMSNormResult._fields
    results = row_norm_forward(RMS, fields, x, scale, bias, epsilon, training, choice, out, stream)
    return RMSNormResult(*results)


@documented(layer_norm)
def rms_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    invrms: ArrayLike,
    *more: Never,
    bias_gradient: bool = False,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> RMSNormGradients[DeviceArray]:
    """Compute the gradients of :func:`rms_norm`.

    With ``n = x * invrms``, and the mean over the normalised axes ::

        dbias = sum(dy)        dscale = sum(dy * n)        g = dy * scale
        dx = invrms * (g - n * mean(g * n))

    Parameters
    ----------
    invrms : device array, float32
        Result of :func:`rms_norm`.

    Returns
    -------
    RMSNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, as scale; ``dbias`` is None
        without ``bias_gradient``.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``.

    Examples
    --------
    >>> x, dy = ct.asarray([[3, 4]], "float32"), ct.asarray([[0, 5]], "float32")
    >>> scale = ct.asarray([1, 1], "float32")
    >>> step = ct.rms_norm(x, scale, epsilon=0)
    >>> ct.rms_norm_backward(dy, x, scale, step.invrms).dscale.numpy().round(3)
    array([0.   , 5.657], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET or invrms is UNSET:
        return corrected(rms_norm_backward, locals())
    operands = {"dy": dy, "x": x, "scale": scale, "invrms": invrms}
    choice = (algo, deterministic, workspace_limit)
    with_bias = as_bool(bias_gradient, "bias_gradient")
    return RMSNormGradients(*row_norm_backward(RMS_GRADIENT, operands, with_bias, choice, out, stream))
