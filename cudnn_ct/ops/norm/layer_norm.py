"""Layer, RMS and adaptive layer normalisation, and their gradients."""

from __future__ import annotations

from typing import Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes import layer_norm as rules
from ...shapes.checks import as_bool
from ...shapes.layer_norm import LayerNormGradients, LayerNormResult, RMSNormGradients, RMSNormResult
from ...typing import Algo, ArrayLike, OutLike, StreamLike
from .._call import execute_as
from .._documented import documented
from .row_norm import ADAPTIVE, ADAPTIVE_GRADIENT, LAYER, LAYER_GRADIENT, RMS, RMS_GRADIENT


@documented()
def layer_norm(
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
) -> LayerNormResult[DeviceArray]:
    """Normalise the last axes of x by their mean and variance (Ba, Kiros and Hinton 2016).

    As a formula, with means over the axes of scale ::

        y = scale * (x - mean) / sqrt(var + epsilon) + bias

    Parameters
    ----------
    x : device array, shape (..., *axes), float16 | bfloat16 | float32
        An array that is not contiguous in this order is copied first, on the device.
    scale : device array, shape (*axes,), dtype of x or float32
        Its shape states which axes of x are normalised: the last ones. In half precision, cuDNN has more
        engines for parameters of the dtype of x than for float32, and faster ones.
    bias : device array, shape and dtype of scale, optional
    training : bool
        Whether the statistics are returned, which the backward pass needs.

    Returns
    -------
    LayerNormResult
        ``y``, DeviceArray of shape and dtype of x; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``, float32
        DeviceArrays with the shape of x, in which normalised axes have length 1; None without ``training``.
        The variance is divided by the number of elements, not by one less.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``. cuDNN has no engine for float64. With cuDNN 9.20 and newer,
    float32 takes two runs, the second on x minus the mean, because their variance has no digits left if the
    mean is large next to the deviation.

    Examples
    --------
    >>> x = ct.asarray([[0, 2], [5, 9]], "float32")
    >>> scale, bias = ct.asarray([1, 2], "float32"), ct.asarray([0, 3], "float32")
    >>> ct.layer_norm(x, scale, bias).y.numpy().round(3)
    array([[-1.,  5.],
           [-1.,  5.]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET:
        return corrected(layer_norm, locals())
    given = {"x": x, "scale": scale} if bias is None else {"x": x, "scale": scale, "bias": bias}
    params = (epsilon, algo, deterministic, workspace_limit)
    absent = "" if as_bool(training, "training") else rules.WITHOUT_STATISTICS
    return execute_as(LayerNormResult, LAYER, given, params, out, stream, absent, count=2)


@documented(layer_norm)
def layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    *more: Never,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> LayerNormGradients[DeviceArray]:
    """Compute the gradients of :func:`layer_norm`.

    With ``n = (x - mean) * invstd``, and means over the normalised axes ::

        dbias = sum(dy)        dscale = sum(dy * n)        g = dy * scale
        dx = invstd * (g - mean(g) - n * mean(g * n))

    Parameters
    ----------
    mean, invstd : device array, float32
        Results of :func:`layer_norm`.

    Returns
    -------
    LayerNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, as scale.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``.

    Examples
    --------
    >>> x, dy = ct.asarray([[0, 2]], "float32"), ct.asarray([[0, 3]], "float32")
    >>> scale = ct.asarray([1, 1], "float32")
    >>> step = ct.layer_norm(x, scale)
    >>> ct.layer_norm_backward(dy, x, scale, step.mean, step.invstd).dbias.numpy()
    array([0., 3.], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET or mean is UNSET or invstd is UNSET:
        return corrected(layer_norm_backward, locals())
    operands = {"dy": dy, "x": x, "scale": scale, "mean": mean, "invstd": invstd}
    params = (algo, deterministic, workspace_limit)
    return execute_as(LayerNormGradients, LAYER_GRADIENT, operands, params, out, stream)


@documented(layer_norm)
def ada_layer_norm(
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
) -> LayerNormResult[DeviceArray]:
    """Normalise the last axes of x as :func:`layer_norm`, with scale and bias of each sample.

    Diffusion transformers use it (Peebles and Xie 2023); their scale is ``1 + gamma``. As a formula, with
    means over the axes of scale after the first, for each sample n ::

        y[n] = scale[n] * (x[n] - mean[n]) / sqrt(var[n] + epsilon) + bias[n]

    Parameters
    ----------
    x : device array, shape (N, ..., *axes), float16 | bfloat16 | float32
        An array that is not contiguous in this order is copied first, on the device.
    scale : device array, shape (N, *axes), dtype of x or float32
        Its shape states which axes of x are normalised.

    Returns
    -------
    LayerNormResult
        ``y``, DeviceArray of shape and dtype of x; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``, float32
        DeviceArrays with the shape of x, in which normalised axes have length 1; None without ``training``.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``. cuDNN has no engine for float64, and none for several
    samples of one row each.

    Examples
    --------
    >>> x = ct.asarray([[[0, 2], [2, 0]], [[5, 9], [9, 5]]], "float32")  # two samples
    >>> scale = ct.asarray([[1, 1], [10, 10]], "float32")
    >>> ct.ada_layer_norm(x, scale).y.numpy()[:, 0].round(3)
    array([[ -1.,   1.],
           [-10.,  10.]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET:
        return corrected(ada_layer_norm, locals())
    given = {"x": x, "scale": scale} if bias is None else {"x": x, "scale": scale, "bias": bias}
    params = (epsilon, algo, deterministic, workspace_limit)
    absent = "" if as_bool(training, "training") else rules.WITHOUT_STATISTICS
    return execute_as(LayerNormResult, ADAPTIVE, given, params, out, stream, absent, count=2)


@documented(layer_norm_backward)
def ada_layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    *more: Never,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> LayerNormGradients[DeviceArray]:
    """Compute the gradients of :func:`ada_layer_norm`.

    The formulas are those of :func:`layer_norm_backward` for each sample.

    Parameters
    ----------
    x : device array, shape (N, ..., *axes), float16 | bfloat16 | float32
    scale : device array, shape (N, *axes), dtype of x or float32
    mean, invstd : device array, float32
        Results of :func:`ada_layer_norm`.

    Returns
    -------
    LayerNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, as scale.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``.

    Examples
    --------
    >>> x, dy = ct.asarray([[[0, 2]]], "float32"), ct.asarray([[[0, 3]]], "float32")
    >>> scale = ct.asarray([[1, 1]], "float32")
    >>> step = ct.ada_layer_norm(x, scale)
    >>> ct.ada_layer_norm_backward(dy, x, scale, step.mean, step.invstd).dbias.numpy()
    array([[0., 3.]], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET or mean is UNSET or invstd is UNSET:
        return corrected(ada_layer_norm_backward, locals())
    operands = {"dy": dy, "x": x, "scale": scale, "mean": mean, "invstd": invstd}
    params = (algo, deterministic, workspace_limit)
    return execute_as(LayerNormGradients, ADAPTIVE_GRADIENT, operands, params, out, stream)


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
    given = {"x": x, "scale": scale} if bias is None else {"x": x, "scale": scale, "bias": bias}
    params = (epsilon, algo, deterministic, workspace_limit)
    absent = "" if as_bool(training, "training") else rules.WITHOUT_STATISTICS
    return execute_as(RMSNormResult, RMS, given, params, out, stream, absent)


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
    params = (algo, deterministic, workspace_limit)
    absent = "" if as_bool(bias_gradient, "bias_gradient") else rules.WITHOUT_DBIAS
    return execute_as(RMSNormGradients, RMS_GRADIENT, operands, params, out, stream, absent)
