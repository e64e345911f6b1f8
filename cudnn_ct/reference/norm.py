"""Batch, instance, layer, RMS and adaptive layer normalisation, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes import layer_norm as rows
from ..shapes import norm as rules
from ..shapes.checks import as_bool, as_float, same_shape
from ..shapes.norm import BatchNormGradients, BatchNormResult, check_epsilon
from ..shapes.specs import TensorSpec
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, R, Result, defined, deliver, operands, required, wide
from .graph_nodes import norm, norm_backward


@defined(signatures.batch_norm_training)
def batch_norm_training(p: Arguments) -> BatchNormResult[Array]:
    """Normalise by batch statistics, add and activate. See :func:`cudnn_ct.batch_norm_training`."""
    x = p.required("x")["x"]
    epsilon, function = rules.check_epsilon(p.epsilon), rules.norm_activation(p.activation)
    given = p.running_mean, p.running_var
    updates = rules.check_running_statistics(x.shape, p.mode, *given, p.momentum)
    running = dict(zip(("running_mean", "running_var"), given, strict=True)) if updates else {}
    for name, array in running.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is updated in place; it must be an array, not {array!r}")
    s, b, *_ = _parameters(x, p.mode, scale=p.scale, bias=p.bias, **running)
    added = 0 if p.residual is None else _like(x, residual=p.residual)

    mean, var = _statistics(x, p.mode)
    invstd = 1 / np.sqrt(var + epsilon)
    y = (wide(x) - mean) * invstd * s + b + added
    dtype = as_dtype(rules.norm_parameter_dtype(x.dtype)).numpy
    results = (y if function is None else np.maximum(y, 0), x.dtype), (mean, dtype), (invstd, dtype)
    step = p.deliver_each(BatchNormResult[Array], results)
    samples = rules.norm_samples(x.shape, p.mode)
    if running and samples:
        momentum = as_float(p.momentum, "momentum")
        for array, new in zip(given, (mean, var * samples / (samples - 1)), strict=True):
            deliver(new.reshape(array.shape), array.dtype, momentum, 1 - momentum, array)
    return step


@defined(signatures.batch_norm_inference)
def batch_norm_inference(p: Arguments) -> Array:
    """Compute :func:`batch_norm_training` by given statistics. See :func:`cudnn_ct.batch_norm_inference`."""
    x, scale = p.required("x", "scale").values()
    kind, epsilon = rules.inference_parameter_dtype(x.dtype, scale.dtype), rules.check_epsilon(p.epsilon)
    s, b, m, v = _parameters(x, p.mode, kind, scale=scale, bias=p.bias, mean=p.mean, var=p.var)
    return p.deliver((wide(x) - m) / np.sqrt(v + epsilon) * s + b, x.dtype)


@defined(signatures.batch_norm_backward)
def batch_norm_backward(p: Arguments) -> BatchNormGradients[Array]:
    """Compute ``scale * invstd * (dy - E(dy) - n * E(dy * n))``. See :func:`cudnn_ct.batch_norm_backward`."""
    _, x, scale = p.required("dy", "x", "scale").values()
    epsilon, function = rules.check_epsilon(p.epsilon), rules.norm_activation(p.activation)
    dz = _like(x, dy=p.dy)
    if (p.mean is None) != (p.invstd is None):
        raise ValueError("mean and invstd must both be given, or neither")
    if p.mean is None:
        (s,) = _parameters(x, p.mode, scale=scale)
        m, var = _statistics(x, p.mode)
        i = 1 / np.sqrt(var + epsilon)
    else:
        s, m, i = _parameters(x, p.mode, scale=scale, mean=p.mean, invstd=p.invstd)
    if function is not None:
        if p.y is None:
            raise ValueError(f"activation={p.activation!r} needs y, the result of the forward step")
        dz = np.where(_like(x, y=p.y) > 0, dz, 0)

    n, samples = (wide(x) - m) * i, rules.norm_samples(x.shape, p.mode)
    dscale, dbias = _parameter_gradients(dz, n, p.mode)
    dx = s * i * (dz - dbias / samples - n * (dscale / samples))
    results = ((dx, x.dtype), *_like_scale(scale, dscale, dbias), (dz, x.dtype))
    absent = rules.WITHOUT_DZ if function is None else ""
    return p.deliver_each(BatchNormGradients[Array], results, absent)


@defined(signatures.batch_norm_inference_backward)
def batch_norm_inference_backward(p: Arguments) -> BatchNormGradients[Array]:
    """Compute the gradients of inference. See :func:`cudnn_ct.batch_norm_inference_backward`."""
    _, x, scale = p.required("dy", "x", "scale").values()
    epsilon = rules.check_epsilon(p.epsilon)
    dz = _like(x, dy=p.dy)
    s, m, v = _parameters(x, p.mode, scale=scale, mean=p.mean, var=p.var)
    i = 1 / np.sqrt(v + epsilon)
    dscale, dbias = _parameter_gradients(dz, (wide(x) - m) * i, p.mode)
    results = ((s * i * dz, x.dtype), *_like_scale(scale, dscale, dbias))
    return p.deliver_each(BatchNormGradients[Array], results, rules.WITHOUT_DZ)


def _like_scale(scale: Array, *sums: Float64) -> list[Result]:
    """Return the gradients of parameters with the shape of scale, and its dtype."""
    return [(one.reshape(scale.shape), scale.dtype) for one in sums]


def _like(x: Array, **named: ArrayLike) -> Float64:
    """Return an operand that must have the dtype and shape of x."""
    _, (_, array) = operands("batch normalisation", x=x, **named)
    same_shape(x=x.shape, **dict.fromkeys(named, array.shape))
    return array


def _parameters(x: Array, mode: Any, dtype: str = "", /, **parameters: ArrayLike | None) -> list[Float64]:
    """Return parameters in shapes that broadcast to x."""
    arrays = required(**parameters)
    shape = rules.check_norm_parameters(x, rules.norm_mode(mode), dtype, **arrays)
    return [wide(array).reshape(shape) for array in arrays.values()]


def _statistics(x: Array, mode: Any) -> tuple[Float64, Float64]:
    """Return mean and variance, the latter divided by the number of samples."""
    values, axes, samples = wide(x), rules.norm_axes(x.shape, mode), rules.norm_samples(x.shape, mode)
    mean = values.sum(axis=axes, keepdims=True) / samples
    return mean, ((values - mean) ** 2).sum(axis=axes, keepdims=True) / samples


def _parameter_gradients(dz: Float64, n: Float64, mode: Any) -> tuple[Float64, Float64]:
    axes = rules.norm_axes(dz.shape, mode)
    return (dz * n).sum(axis=axes, keepdims=True), dz.sum(axis=axes, keepdims=True)


# --- instance normalisation and its gradients --------------------------------------------------------------


@defined(signatures.instance_norm)
def instance_norm(p: Arguments) -> BatchNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each image. See :func:`cudnn_ct.instance_norm`."""
    parameters = p.required("x", "scale", "bias")
    x = parameters.pop("x")
    shape = rules.check_norm_parameters(x, rules.INSTANCE, **parameters)
    scale, bias = (np.tile(wide(array), x.shape[0]) for array in parameters.values())
    step = batch_norm_training(_one_image(wide(x)), scale, bias, epsilon=p.epsilon)
    dtype = as_dtype(rules.norm_parameter_dtype(x.dtype)).numpy
    statistics = [(array.reshape(shape), dtype) for array in step[1:]]
    return p.deliver_each(BatchNormResult[Array], ((step.y.reshape(x.shape), x.dtype), *statistics))


@defined(signatures.instance_norm_backward)
def instance_norm_backward(p: Arguments) -> BatchNormGradients[Array]:
    """Compute ``scale * invstd * (dy - E(dy) - n E(dy n))``. See :func:`cudnn_ct.instance_norm_backward`."""
    dtype, (values, gradient) = p.operands("instance normalisation", "x", "dy")
    same_shape(x=values.shape, dy=gradient.shape)
    arrays = p.required("scale") | p.present("mean", "invstd")
    rules.check_norm_parameters(np.asarray(p.x), rules.INSTANCE, **arrays)
    tiled = np.tile(wide(arrays.pop("scale")), values.shape[0])
    statistics: dict[str, Any] = {name: wide(array).reshape(-1) for name, array in arrays.items()}
    images = _one_image(gradient), _one_image(values)
    step = batch_norm_backward(*images, tiled, **statistics, epsilon=p.epsilon)
    kind = as_dtype(rules.norm_parameter_dtype(dtype)).numpy
    sums = [(array.reshape(values.shape[:2]).sum(0), kind) for array in (step.dscale, step.dbias)]
    results = ((step.dx.reshape(values.shape), dtype), *sums)
    return p.deliver_each(BatchNormGradients[Array], results, rules.WITHOUT_DZ)


def _one_image(x: Float64) -> Float64:
    n, channels, *size = x.shape
    return x.reshape(1, n * channels, *size)


# --- normalisations of rows --------------------------------------------------------------------------------


@defined(signatures.layer_norm)
def layer_norm(p: Arguments) -> rows.LayerNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each row. See :func:`cudnn_ct.layer_norm`."""
    return _forward(rows.LayerNormResult[Array], "layer_norm", p)


@defined(signatures.rms_norm)
def rms_norm(p: Arguments) -> rows.RMSNormResult[Array]:
    """Compute ``scale * x / sqrt(mean(x ** 2) + epsilon) + bias``. See :func:`cudnn_ct.rms_norm`."""
    return _forward(rows.RMSNormResult[Array], "rms_norm", p)


@defined(signatures.ada_layer_norm)
def ada_layer_norm(p: Arguments) -> rows.LayerNormResult[Array]:
    """Compute :func:`layer_norm` with parameters of each sample. See :func:`cudnn_ct.ada_layer_norm`."""
    return _forward(rows.LayerNormResult[Array], "ada_layer_norm", p)


@defined(signatures.layer_norm_backward)
def layer_norm_backward(p: Arguments) -> rows.LayerNormGradients[Array]:
    """Compute ``invstd * (g - E(g) - n E(g n))``, g = dy scale. See :func:`cudnn_ct.layer_norm_backward`."""
    return p.deliver_each(rows.LayerNormGradients[Array], _backward("layer_norm", p, "mean", "invstd"))


@defined(signatures.rms_norm_backward)
def rms_norm_backward(p: Arguments) -> rows.RMSNormGradients[Array]:
    """Compute ``invrms * (g - n E(g n))`` with ``g = dy scale``. See :func:`cudnn_ct.rms_norm_backward`."""
    results = _backward("rms_norm", p, "invrms")
    with_bias = as_bool(p.bias_gradient, "bias_gradient")
    absent = "" if with_bias else rows.WITHOUT_DBIAS
    return p.deliver_each(rows.RMSNormGradients[Array], results if with_bias else results[:2], absent)


@defined(signatures.ada_layer_norm_backward)
def ada_layer_norm_backward(p: Arguments) -> rows.LayerNormGradients[Array]:
    """Compute the gradients of :func:`ada_layer_norm`. See :func:`cudnn_ct.ada_layer_norm_backward`."""
    return p.deliver_each(rows.LayerNormGradients[Array], _backward("ada_layer_norm", p, "mean", "invstd"))


def _forward(kind: type[R], mode: rows.LayerNormMode, p: Arguments) -> R:
    arrays = p.required("x", "scale") | p.present("bias")
    problem = rows.row_norm(mode, _specs(arrays), (None, None, None), p.epsilon)
    at = problem.shape
    given = {name: at.parameter(wide(array)) for name, array in arrays.items() if name != "x"}
    given |= {"x": at.data(wide(arrays["x"])), "epsilon": np.float64(check_epsilon(p.epsilon))}
    made = norm(given, {"mode": mode, "normalized": (2,)})
    moments = [made[name] for name in ("mean", "inv_variance")[mode == "rms_norm" :]]
    results: list[Result] = [(made["y"].reshape(problem.x.shape), arrays["x"].dtype)]
    kept = np.dtype(np.float64 if arrays["x"].dtype == np.float64 else np.float32)
    results += [(moment.reshape(at.statistics), kept) for moment in moments]
    absent = "" if as_bool(p.training, "training") else rows.WITHOUT_STATISTICS
    return p.deliver_each(kind, results, absent, len(moments))


def _backward(mode: rows.LayerNormMode, p: Arguments, *statistics: str) -> list[Result]:
    """Return dx, dscale and dbias in float64, with their dtypes."""
    arrays = p.required("dy", "x", "scale", *statistics)
    at = rows.row_norm_gradient(mode, _specs(arrays), (None, None, None)).shape
    data = {name: at.data(wide(arrays[name])) for name in ("dy", "x")}
    moments = [at.statistic(wide(arrays[name])) for name in statistics]
    named = dict(zip(("mean", "inv_variance")[-len(moments) :], moments, strict=True))
    scale = at.parameter(wide(arrays["scale"]))
    made = norm_backward(data | named | {"scale": scale}, {"mode": mode, "normalized": (2,), "shapes": {}})
    results = {"dx": arrays["x"], "dscale": arrays["scale"], "dbias": arrays["scale"]}
    return [(made[name].reshape(like.shape), like.dtype) for name, like in results.items()]


def _specs(arrays: dict[str, Array]) -> dict[str, TensorSpec]:
    """Return the specs of operands; float64 exists here only, so the rows get float32."""
    wider = arrays["x"].dtype == np.float64

    def dtype(array: Array) -> Any:
        return np.dtype(np.float32) if wider and array.dtype == np.float64 else array.dtype

    return {name: TensorSpec.packed(array.shape, dtype(array)) for name, array in arrays.items()}
