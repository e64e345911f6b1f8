"""Products of matrices and convolutions, with the operations around them that cuDNN fuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..shapes import matmul as products
from ..shapes import training_fusions as fusions
from ..shapes.arithmetic import WITHOUT_AMAX
from ..shapes.checks import as_float, result_slots
from ..shapes.conv import conv_problem
from ..shapes.fused import Float8Conv, ScaledConvResult, float8_conv_problem, scaled_conv_problem
from ..shapes.matmul import MatmulGradients, MatmulProblem, ScaledMatmulResult
from ..shapes.specs import results_of
from ..shapes.training_fusions import BatchNormFinalizeResult, ConvBatchNormGradients, ConvStatisticsResult
from . import _definition
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, R, defined, specs_of, specs_of_outs, summed_to, wide
from .conv import convolved, data_gradient, filter_gradient, fused_activation, geometry_of
from .graph_nodes import bn_backward_weights, bn_finalize
from .layers import activated


@defined(signatures.matmul)
def matmul(p: Arguments) -> Array:
    """Compute ``act(alpha * (a @ b) + bias + residual)``. See :func:`cudnn_ct.matmul`."""
    arrays = p.required("a", "b") | p.present("bias", "residual", "b_scale")
    outs = specs_of_outs((p.out,))
    problem = products.matmul_problem(specs_of(arrays), outs, p.activation, p.alpha, None, p.out_dtype)
    del p.alpha  # which the epilogue follows
    return p.deliver(_product(problem, arrays), as_dtype(problem.y.dtype).numpy)


@defined(signatures.scaled_matmul)
def scaled_matmul(p: Arguments) -> ScaledMatmulResult[Array]:
    """Compute a product of float8 matrices with scales. See :func:`cudnn_ct.scaled_matmul`."""
    arrays = p.required("a", "b") | p.present("bias", "residual", "descale_a", "descale_b", "scale")
    outs = specs_of_outs(result_slots(p.out, ("y", "amax"), absent="" if p.amax else WITHOUT_AMAX))
    problem = products.scaled_matmul_problem(specs_of(arrays), outs, p.activation, p.out_dtype)
    return _deliver_with_amax(ScaledMatmulResult[Array], _product(problem, arrays), problem, arrays, p)


def _deliver_with_amax(
    kind: type[R], values: Float64, problem: Any, arrays: dict[str, Array], p: Arguments
) -> R:
    """Deliver the scaled values and, if the problem has it, their largest magnitude before the scale."""
    largest = np.full(1, np.abs(values).max(initial=0))
    if "scale" in arrays:
        values = values * wide(arrays["scale"]).reshape(())
    results: list[_definition.Result] = [(values, as_dtype(problem.y.dtype).numpy)]
    if problem.amax:
        results.append((largest, np.dtype(np.float32)))
    return p.deliver_each(kind, results, absent="" if problem.amax else WITHOUT_AMAX)


@defined(signatures.matmul_backward)
def matmul_backward(p: Arguments) -> MatmulGradients[Array]:
    """Compute ``alpha * dy @ b.T`` and ``alpha * a.T @ dy``. See :func:`cudnn_ct.matmul_backward`."""
    arrays = p.required("dy", "a", "b")
    dtype, alpha = arrays["a"].dtype, as_float(p.alpha, "alpha")
    products.check_gradient(**specs_of(arrays), with_bias=p.bias_gradient)
    left, right, gradient = (wide(arrays[name]) for name in ("a", "b", "dy"))
    if right.ndim == 1:
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None], np.expand_dims(gradient, -2)
    da = alpha * summed_to(gradient @ right.swapaxes(-1, -2), left.shape).reshape(arrays["a"].shape)
    db = alpha * summed_to(left.swapaxes(-1, -2) @ gradient, right.shape).reshape(arrays["b"].shape)
    results = [(da, dtype), (db, dtype)]
    if p.bias_gradient:
        results.append((wide(arrays["dy"]).sum(tuple(range(arrays["dy"].ndim - 1))), dtype))
    absent = "" if p.bias_gradient else products.WITHOUT_DBIAS
    del p.alpha  # which db has, too, and dbias has not
    return p.deliver_each(MatmulGradients[Array], results, absent)


def _product(problem: MatmulProblem, arrays: dict[str, Array]) -> Float64:
    """Return the result in float64, before ``scale``."""
    return _finished(problem, np.asarray(wide(arrays["a"]) @ wide(arrays["b"])) * problem.alpha, arrays)


def _finished(problem: MatmulProblem | Float8Conv, y: Float64, arrays: dict[str, Array]) -> Float64:
    """Return ``act(factors * y + bias + residual)``."""
    for name in ("b_scale", "descale_a", "descale_b", "descale_x", "descale_w"):
        if name in arrays:
            y = y * wide(arrays[name]).reshape(-1 if arrays[name].size > 1 else ())
    for name in ("bias", "residual"):
        if name in arrays:
            y = y + wide(arrays[name])
    return activated(y, problem.activation)


# --- convolutions ------------------------------------------------------------------------------------------


@defined(signatures.conv_scale_bias_activation)
def conv_scale_bias_activation(p: Arguments) -> Array:
    """Compute ``act(conv * scale + bias + residual)``. See :func:`cudnn_ct.conv_scale_bias_activation`."""
    arrays = p.required("x", "w", "scale", "bias") | p.present("residual")
    specs = specs_of(arrays)
    of_conv = conv_problem("forward", specs["x"], specs["w"], **geometry_of(p))
    problem = scaled_conv_problem(of_conv, specs, p.activation, p.coefficient)
    sums = convolved(of_conv, wide(arrays["x"]), wide(arrays["w"]))
    values = sums * _per_channel(arrays["scale"], sums) + _per_channel(arrays["bias"], sums)
    if "residual" in arrays:
        values = values + wide(arrays["residual"])
    return p.deliver(fused_activation(values, problem), arrays["x"].dtype)


@defined(signatures.scaled_conv)
def scaled_conv(p: Arguments) -> ScaledConvResult[Array]:
    """Compute a convolution of float8 with scales. See :func:`cudnn_ct.scaled_conv`."""
    arrays = p.required("x", "w") | p.present("descale_x", "descale_w", "scale", "bias")
    outs = specs_of_outs(result_slots(p.out, ScaledConvResult._fields, absent="" if p.amax else WITHOUT_AMAX))
    problem = float8_conv_problem(specs_of(arrays), outs, p.activation, p.out_dtype, **geometry_of(p))
    values = convolved(problem.core, wide(arrays["x"]), wide(arrays["w"]))
    if "bias" in arrays:
        arrays["bias"] = _per_channel(arrays["bias"], values)
    values = _finished(problem, values, arrays)
    return _deliver_with_amax(ScaledConvResult[Array], values, problem, arrays, p)


@defined(signatures.conv_batch_norm_statistics)
def conv_batch_norm_statistics(p: Arguments) -> ConvStatisticsResult[Array]:
    """Compute a convolution and its sums. See :func:`cudnn_ct.conv_batch_norm_statistics`."""
    arrays = p.required("x", "w") | p.present("scale", "bias")
    specs = specs_of(arrays)
    conv = conv_problem("forward", specs["x"], specs["w"], **geometry_of(p))
    fusions.statistics_problem(conv, specs, (None,) * 3)
    x = _scaled_relu(arrays) if "scale" in arrays else wide(arrays["x"])
    y = convolved(conv, x, wide(arrays["w"]))
    axes, single = (0, *range(2, y.ndim)), np.dtype(np.float32)
    results = [(y, arrays["x"].dtype), (y.sum(axes), single), ((y * y).sum(axes), single)]
    return p.deliver_each(ConvStatisticsResult[Array], results)


@defined(signatures.batch_norm_finalize)
def batch_norm_finalize(p: Arguments) -> BatchNormFinalizeResult[Array]:
    """Compute statistics from sums. See :func:`cudnn_ct.batch_norm_finalize`."""
    arrays = p.required("sums", "square_sums", "scale", "bias", "running_mean", "running_var")
    given = (p.count, p.epsilon, p.momentum, p.eq_dtype)
    problem = fusions.finalize_problem(specs_of(arrays), (None,) * 6, *given)
    values: dict[str, Any] = {name: wide(array).reshape(-1) for name, array in arrays.items()}
    values |= {
        "y_sum": values["sums"],
        "y_sq_sum": values["square_sums"],
        "prev_running_mean": values["running_mean"],
        "prev_running_var": values["running_var"],
        "accum_count": np.float64(problem.elements),
        "epsilon": np.float64(problem.epsilon),
        "exp_average_factor": np.float64(problem.momentum),
    }
    results = list(bn_finalize(values, {}).values())
    dtypes = [as_dtype(spec.dtype).numpy for spec in results_of(problem)]
    return p.deliver_each(BatchNormFinalizeResult[Array], list(zip(results, dtypes, strict=True)))


@defined(signatures.conv_backward_data_relu_batch_norm)
def conv_backward_data_relu_batch_norm(p: Arguments) -> ConvBatchNormGradients[Array]:
    """Compute gradients before a relu. See :func:`cudnn_ct.conv_backward_data_relu_batch_norm`."""
    arrays = p.required("dy", "w", "x", "mean", "invstd", "scale", "bias")
    specs = specs_of(arrays)
    shape = arrays["x"].shape
    conv = conv_problem("backward_data", specs["dy"], specs["w"], shape=shape, **geometry_of(p))
    fusions.data_gradient(conv, specs, (None,) * 6)
    images = wide(arrays["x"])
    centre, inverse, factor, shift = (
        _per_channel(arrays[name], images) for name in ("mean", "invstd", "scale", "bias")
    )
    normal = (images - centre) * inverse
    slope = data_gradient(conv, wide(arrays["dy"]), wide(arrays["w"]))
    dz = np.where(normal * factor + shift > 0, slope, 0.0)
    given = {"x": images, "dy": dz, "mean": centre, "inv_std": inverse, "scale": factor}
    vectors = [one.reshape(-1) for one in bn_backward_weights(given, {}).values()]
    results = [(dz, arrays["x"].dtype), *((one, np.dtype(np.float32)) for one in vectors)]
    return p.deliver_each(ConvBatchNormGradients[Array], results)


@defined(signatures.conv_backward_filter_scale_bias_relu)
def conv_backward_filter_scale_bias_relu(p: Arguments) -> Array:
    """Compute the gradient of a filter. See :func:`cudnn_ct.conv_backward_filter_scale_bias_relu`."""
    arrays = p.required("dy", "x", "scale", "bias")
    specs = specs_of(arrays)
    conv = conv_problem("backward_filter", specs["dy"], specs["x"], shape=p.w_shape, **geometry_of(p))
    fusions.filter_gradient(conv, specs)
    dw = filter_gradient(conv, wide(arrays["dy"]), _scaled_relu(arrays))
    return p.deliver(dw, arrays["x"].dtype)


def _scaled_relu(arrays: dict[str, Array]) -> Float64:
    """Return ``relu(x * scale + bias)``, rounded to the dtype of x, which the convolution multiplies."""
    x = arrays["x"]
    values = wide(x) * _per_channel(arrays["scale"], x) + _per_channel(arrays["bias"], x)
    return wide(_definition.round_once(np.where(values < 0, 0.0, values), x.dtype))


def _per_channel(array: Array, images: Array) -> Float64:
    """Return an operand of channels in float64, with the rank of images."""
    return wide(array).reshape(1, -1, *[1] * (images.ndim - 2))
