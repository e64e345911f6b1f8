"""Products of matrices and convolutions, with the operations around them that cuDNN fuses."""

from __future__ import annotations

from typing import Any, Never

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .._hints import UNSET, corrected, known_keywords
from ..dtypes import as_dtype
from ..shapes import matmul as products
from ..shapes import training_fusions as fusions
from ..shapes.checks import result_slots
from ..shapes.conv import conv_problem
from ..shapes.epilogue import WITHOUT_AMAX
from ..shapes.fused import Float8Conv, ScaledConvResult, float8_conv_problem, scaled_conv_problem
from ..shapes.layer import results_of
from ..shapes.matmul import MatmulGradients, MatmulProblem, ScaledMatmulResult
from ..shapes.parse import as_float
from ..shapes.training_fusions import BatchNormFinalizeResult, ConvBatchNormGradients, ConvStatisticsResult
from ..shapes.training_fusions import data_gradient as check_data_gradient
from ..shapes.training_fusions import filter_gradient as check_filter_gradient
from ..typing import FusedActivation, MatmulActivation, Padding, PerAxis, Shape
from ._cast import (
    Array,
    Float64,
    Outs,
    R,
    Result,
    deliver,
    deliver_each,
    present,
    required,
    round_once,
    specs_of,
    specs_of_outs,
    summed_to,
    wide,
)
from .conv import convolved, data_gradient, filter_gradient, geometry_of
from .graph_nodes import bn_backward_weights, bn_finalize
from .layers import CURVES, activated


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    alpha: float = 1,
    out_dtype: DTypeLike | None = None,
    out: Array | None = None,
) -> Array:
    """Compute ``act(alpha * (a @ b) + bias + residual)``. See :func:`cudnn_ct.matmul`."""
    arrays = required(a=a, b=b) | present(bias=bias, residual=residual, b_scale=b_scale)
    outs = specs_of_outs((out,))
    problem = products.matmul_problem(specs_of(arrays), outs, activation, alpha, None, out_dtype)
    values = _product(problem, arrays)
    return deliver(values, as_dtype(problem.y.dtype).numpy, 1, 0, out)


def scaled_matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    descale_a: ArrayLike | None = None,
    descale_b: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    out: Outs | None = None,
) -> ScaledMatmulResult[Array]:
    """Compute a product of float8 matrices with scales. See :func:`cudnn_ct.scaled_matmul`."""
    factors = {"descale_a": descale_a, "descale_b": descale_b, "scale": scale}
    arrays = required(a=a, b=b) | present(bias=bias, residual=residual, **factors)
    outs = specs_of_outs(result_slots(out, ("y", "amax"), absent="" if amax else WITHOUT_AMAX))
    problem = products.scaled_matmul_problem(specs_of(arrays), outs, activation, out_dtype)
    values = _product(problem, arrays)
    return _deliver_with_amax(ScaledMatmulResult[Array], values, problem, arrays.get("scale"), out)


def _deliver_with_amax(kind: type[R], values: Float64, problem: Any, scale: Array | None, out: Any) -> R:
    """Deliver the scaled values and, if the problem has it, their largest magnitude before the scale."""
    largest = np.full(1, np.abs(values).max(initial=0))
    if scale is not None:
        values = values * wide(scale).reshape(())
    results: list[Result] = [(values, as_dtype(problem.y.dtype).numpy)]
    if problem.amax:
        results.append((largest, np.dtype(np.float32)))
    return deliver_each(kind, results, 1, 0, out, absent="" if problem.amax else WITHOUT_AMAX)


def matmul_backward(
    dy: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    alpha: float = 1,
    bias_gradient: bool = False,
    out: Outs | None = None,
) -> MatmulGradients[Array]:
    """Compute ``alpha * dy @ b.T`` and ``alpha * a.T @ dy``. See :func:`cudnn_ct.matmul_backward`."""
    arrays = required(dy=dy, a=a, b=b)
    dtype, alpha = arrays["a"].dtype, as_float(alpha, "alpha")
    products.check_gradient(specs_of(arrays), bias_gradient)
    left, right, gradient = (wide(arrays[name]) for name in ("a", "b", "dy"))
    if right.ndim == 1:
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None], np.expand_dims(gradient, -2)
    da = alpha * summed_to(gradient @ right.swapaxes(-1, -2), left.shape).reshape(arrays["a"].shape)
    db = alpha * summed_to(left.swapaxes(-1, -2) @ gradient, right.shape).reshape(arrays["b"].shape)
    results = [(da, dtype), (db, dtype)]
    if bias_gradient:
        results.append((wide(arrays["dy"]).reshape(-1, arrays["dy"].shape[-1]).sum(0), dtype))
    absent = "" if bias_gradient else products.WITHOUT_DBIAS
    return deliver_each(MatmulGradients[Array], results, 1, 0, out, absent=absent)


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


@known_keywords
def conv_scale_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    residual: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    out: Array | None = None,
    **unknown: Never,
) -> Array:
    """Compute ``act(conv * scale + bias + residual)``. See :func:`cudnn_ct.conv_scale_bias_activation`."""
    if more or unknown or x is UNSET or w is UNSET or scale is UNSET or bias is UNSET:
        return corrected(conv_scale_bias_activation, locals())
    arrays = required(x=x, w=w, scale=scale, bias=bias) | present(residual=residual)
    specs = specs_of(arrays)
    geometry = geometry_of(padding, stride, dilation, groups)
    of_conv = conv_problem("forward", specs["x"], specs["w"], **geometry)
    problem = scaled_conv_problem(of_conv, specs, activation, coefficient)
    sums = convolved(of_conv, wide(arrays["x"]), wide(arrays["w"]))
    values = sums * _per_channel(arrays["scale"], sums) + _per_channel(arrays["bias"], sums)
    if "residual" in arrays:
        values = values + wide(arrays["residual"])
    name, coefficient = problem.activation, problem.coefficient
    y = CURVES[name](values, (coefficient or 1) if name == "swish" else coefficient)
    return deliver(np.asarray(y), arrays["x"].dtype, 1, 0, out)


def scaled_conv(
    x: ArrayLike,
    w: ArrayLike,
    *,
    descale_x: ArrayLike | None = None,
    descale_w: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    amax: bool = False,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    out_dtype: DTypeLike | None = None,
    out: Outs | None = None,
) -> ScaledConvResult[Array]:
    """Compute a convolution of float8 with scales. See :func:`cudnn_ct.scaled_conv`."""
    optional = present(descale_x=descale_x, descale_w=descale_w, scale=scale, bias=bias)
    arrays = required(x=x, w=w) | optional
    outs = specs_of_outs(result_slots(out, ScaledConvResult._fields, absent="" if amax else WITHOUT_AMAX))
    geometry = geometry_of(padding, stride, dilation, groups)
    problem = float8_conv_problem(specs_of(arrays), outs, activation, out_dtype, **geometry)
    values = convolved(problem.core, wide(arrays["x"]), wide(arrays["w"]))
    if bias is not None:
        arrays["bias"] = _per_channel(arrays["bias"], values)
    values = _finished(problem, values, arrays)
    return _deliver_with_amax(ScaledConvResult[Array], values, problem, arrays.get("scale"), out)


def conv_batch_norm_statistics(
    x: ArrayLike,
    w: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    out: Outs | None = None,
) -> ConvStatisticsResult[Array]:
    """Compute a convolution and its sums. See :func:`cudnn_ct.conv_batch_norm_statistics`."""
    arrays = required(x=x, w=w) | present(scale=scale, bias=bias)
    specs = specs_of(arrays)
    conv = conv_problem("forward", specs["x"], specs["w"], **geometry_of(padding, stride, dilation))
    fusions.statistics_problem(conv, specs, (None,) * 3)
    y = convolved(conv, wide(arrays["x"]) if scale is None else _scaled_relu(arrays), wide(arrays["w"]))
    axes, single = (0, *range(2, y.ndim)), np.dtype(np.float32)
    results = [(y, arrays["x"].dtype), (y.sum(axes), single), ((y * y).sum(axes), single)]
    return deliver_each(ConvStatisticsResult[Array], results, 1, 0, out)


def batch_norm_finalize(
    sums: ArrayLike,
    square_sums: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    count: int,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    eq_dtype: DTypeLike = "float16",
    out: Outs | None = None,
) -> BatchNormFinalizeResult[Array]:
    """Compute statistics from sums. See :func:`cudnn_ct.batch_norm_finalize`."""
    running = {"running_mean": running_mean, "running_var": running_var}
    arrays = required(sums=sums, square_sums=square_sums, scale=scale, bias=bias, **running)
    specs = specs_of(arrays)
    problem = fusions.finalize_problem(specs, (None,) * 6, count, epsilon, momentum, eq_dtype)
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
    return deliver_each(BatchNormFinalizeResult[Array], list(zip(results, dtypes, strict=True)), 1, 0, out)


def conv_backward_data_relu_batch_norm(
    dy: ArrayLike,
    w: ArrayLike,
    x: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    out: Outs | None = None,
) -> ConvBatchNormGradients[Array]:
    """Compute gradients before a relu. See :func:`cudnn_ct.conv_backward_data_relu_batch_norm`."""
    arrays = required(dy=dy, w=w, x=x, mean=mean, invstd=invstd, scale=scale, bias=bias)
    specs = specs_of(arrays)
    geometry = geometry_of(padding, stride, dilation)
    conv = conv_problem("backward_data", specs["dy"], specs["w"], shape=arrays["x"].shape, **geometry)
    check_data_gradient(conv, specs, (None,) * 6)
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
    return deliver_each(ConvBatchNormGradients[Array], results, 1, 0, out)


def conv_backward_filter_scale_bias_relu(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    w_shape: Shape,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of a filter. See :func:`cudnn_ct.conv_backward_filter_scale_bias_relu`."""
    arrays = required(dy=dy, x=x, scale=scale, bias=bias)
    specs = specs_of(arrays)
    geometry = geometry_of(padding, stride, dilation)
    conv = conv_problem("backward_filter", specs["dy"], specs["x"], shape=w_shape, **geometry)
    check_filter_gradient(conv, specs)
    dw = filter_gradient(conv, wide(arrays["dy"]), _scaled_relu(arrays))
    return deliver(dw, arrays["x"].dtype, 1, 0, out)


def _scaled_relu(arrays: dict[str, Array]) -> Float64:
    """Return ``relu(x * scale + bias)``, rounded to the dtype of x, which the convolution multiplies."""
    x = arrays["x"]
    values = wide(x) * _per_channel(arrays["scale"], x) + _per_channel(arrays["bias"], x)
    return wide(round_once(np.where(values < 0, 0.0, values), x.dtype))


def _per_channel(array: Array, images: Array) -> Float64:
    """Return an operand of channels in float64, with the rank of images."""
    return wide(array).reshape(1, -1, *[1] * (images.ndim - 2))
