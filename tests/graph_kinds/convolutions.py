"""Convolutions with what precedes and follows them, and the parts of batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_ct.graph.operations import Graph, Tensor
from cudnn_ct.shapes.specs import Shape, packed_strides

from .draft import Draft

__all__ = ["CONVOLUTIONS"]

N, C, F, P = 4, 32, 64, 16
IMAGES, RESULTS, WINDOW = (N, C, P, P), (N, F, P, P), (F, C, 3, 3)
GEOMETRY: dict[str, Any] = {
    "alpha": 1.0,
    "beta": 0.0,
    "comp_type": "float32",
    "conv_mode": "cross_correlation",
    "spatial_dims": 2,
    "pre_paddings": (1, 1),
    "post_paddings": (1, 1),
    "filter_strides": (1, 1),
    "dilations": (1, 1),
}


def last(shape: Shape) -> Shape:
    return packed_strides(shape, "nhwc")


def images(draft: Draft, shape: Shape, dtype: str = "float16") -> Tensor:
    return draft.input(shape, dtype, last(shape))


def result(draft: Draft, shape: Shape, dtype: str = "float16") -> Tensor:
    return draft.result(shape, dtype, last(shape))


def virtual(draft: Draft, shape: Shape, dtype: str = "float32") -> Tensor:
    return draft.virtual(shape, dtype, last(shape))


def channels(draft: Draft, count: int, dtype: str = "float32") -> Tensor:
    return images(draft, (1, count, 1, 1), dtype)


def conv(activation: str) -> Graph:
    """Convolution, bias, activation."""
    draft = Draft()
    x, w, b = images(draft, IMAGES), images(draft, WINDOW), channels(draft, F, "float16")
    y = virtual(draft, RESULTS)
    draft.add("conv_forward", x=x, w=w, y=y, **GEOMETRY)
    draft.pointwise(activation, draft.pointwise("add", y, b), y=result(draft, RESULTS))
    return draft.graph()


def conv_float8() -> Graph:
    """An 8-bit convolution with scales, and the largest magnitude of the result."""
    draft = Draft()
    x, w = images(draft, IMAGES, "float8_e4m3"), images(draft, WINDOW, "float8_e4m3")
    scales = [channels(draft, 1) for _ in range(3)]
    y, largest = result(draft, RESULTS, "float8_e4m3"), result(draft, (1, 1, 1, 1), "float32")
    value = virtual(draft, RESULTS)
    draft.add("conv_forward", x=x, w=w, y=value, **GEOMETRY)
    value = draft.pointwise("mul", draft.pointwise("mul", value, scales[0]), scales[1])
    draft.pointwise("mul", value, scales[2], y=y)
    draft.reduce("amax", value, (1, 1, 1, 1), largest)
    return draft.graph()


def conv_statistics() -> Graph:
    """scale, bias and relu before a convolution, and the sums of its result and of its squares."""
    draft = Draft()
    x, w = images(draft, IMAGES), images(draft, WINDOW)
    scale, bias = channels(draft, C, "float16"), channels(draft, C, "float16")
    y = result(draft, RESULTS)
    sums = [result(draft, (1, F, 1, 1), "float32") for _ in range(2)]
    value = draft.pointwise("mul", x, scale)
    value = draft.pointwise("relu_fwd", draft.pointwise("add", value, bias), dtype="float16")
    draft.add("conv_forward", x=value, w=w, y=y, **GEOMETRY)
    draft.add("gen_stats", mode="sum_sqsum", math_prec="float32", xdesc=y, sumdesc=sums[0], sqsumdesc=sums[1])
    return draft.graph()


def data_gradient_relu() -> Graph:
    """The gradient of the data, and of the relu before the convolution."""
    draft = Draft()
    dy, w, x = images(draft, RESULTS), images(draft, WINDOW), images(draft, IMAGES)
    dx = virtual(draft, IMAGES)
    draft.add("conv_backward_data", dy=dy, w=w, dx=dx, **GEOMETRY)
    draft.pointwise_backward("relu_bwd", dx, x, result(draft, IMAGES))
    return draft.graph()


def data_gradient_batch_norm() -> Graph:
    """The gradients of a convolution's data, of relu and of the weights of the batch norm before them."""
    draft = Draft()
    dy, w, x = images(draft, RESULTS), images(draft, WINDOW), images(draft, IMAGES)
    mean, deviation, scale, bias = (channels(draft, C) for _ in range(4))
    dx = virtual(draft, IMAGES)
    draft.add("conv_backward_data", dy=dy, w=w, dx=dx, **GEOMETRY)
    value = draft.pointwise("mul", draft.pointwise("sub", x, mean), deviation)
    value = draft.pointwise("add", draft.pointwise("mul", value, scale), bias)
    slope = result(draft, IMAGES)
    draft.pointwise_backward("relu_bwd", dx, value, slope)
    names = ("dbn_scale_desc", "dbn_bias_desc", "eq_dy_scale_desc", "eq_x_scale_desc", "eq_bias")
    written = {name: result(draft, (1, C, 1, 1), "float32") for name in names}
    draft.add(
        "bn_backward_weights",
        math_prec="float32",
        x_desc=x,
        dy_desc=slope,
        mean_desc=mean,
        invstd_desc=deviation,
        bn_scale_desc=scale,
        **written,
    )
    return draft.graph()


def filter_gradient_prologue() -> Graph:
    """scale, bias and relu of the data, and the gradient of the filter."""
    draft = Draft()
    x, dy = images(draft, IMAGES), images(draft, RESULTS)
    scale, bias = channels(draft, C, "float16"), channels(draft, C, "float16")
    value = draft.pointwise("add", draft.pointwise("mul", x, scale), bias)
    value = draft.pointwise("relu_fwd", value, dtype="float16")
    draft.add("conv_backward_filter", x=value, dy=dy, dw=result(draft, WINDOW), **GEOMETRY)
    return draft.graph()


def batch_norm_finalize() -> Graph:
    """Statistics of batch norm, and its scale and bias, from sums."""
    draft = Draft()
    inputs = ("y_sum", "y_sq_sum", "scale", "bias", "prev_running_mean", "prev_running_var")
    outputs = ("eq_scale", "eq_bias", "saved_mean", "saved_inv_std")
    outputs += ("updated_running_mean", "updated_running_var")
    read = {f"{name}_desc": channels(draft, C) for name in inputs}
    written = {f"{name}_desc": result(draft, (1, C, 1, 1), "float32") for name in outputs}
    draft.add(
        "bn_finalize_statistics",
        stats_mode="training",
        math_prec="float32",
        epsilon_desc=draft.value(1e-5),
        exp_averate_factor_desc=draft.value(0.1),
        accum_count_desc=draft.value(N * P * P, "int64"),
        **read,
        **written,
    )
    return draft.graph()


def batch_norm() -> Graph:
    """Batch norm in training, with running statistics, and relu."""
    draft = Draft()
    x = images(draft, IMAGES)
    inputs = ("scale", "bias", "input_running_mean", "input_running_var")
    outputs = ("mean", "inv_variance", "output_running_mean", "output_running_var")
    read = {f"{name}_desc": channels(draft, C) for name in inputs}
    y = result(draft, IMAGES)
    written = {f"{name}_desc": result(draft, (1, C, 1, 1), "float32") for name in outputs}
    value = virtual(draft, IMAGES)
    draft.add(
        "norm_forward",
        mode="batch_norm",
        phase="training",
        xdesc=x,
        ydesc=value,
        epsilon_desc=draft.value(1e-5),
        exp_avg_factor_desc=draft.value(0.1),
        **read,
        **written,
    )
    draft.pointwise("relu_fwd", value, y=y)
    return draft.graph()


def pooling(mode: str, indices: bool = False) -> Graph:
    draft = Draft()
    x, shape = images(draft, IMAGES), (N, C, P // 2, P // 2)
    y = result(draft, shape)
    index = result(draft, shape, "int8") if indices else None
    draft.add("resample_forward", **window(mode), xdesc=x, ydesc=y, idxdesc=index)
    return draft.graph()


def pooling_backward(mode: str) -> Graph:
    draft = Draft()
    dy, index = (images(draft, (N, C, P // 2, P // 2), dtype) for dtype in ("float16", "int8"))
    dx = result(draft, IMAGES)
    draft.add("resample_backward", **window(mode), dydesc=dy, idxdesc=index, dxdesc=dx)
    return draft.graph()


def window(mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "comp_type": "float32",
        "spatial_dims": 2,
        "padding_mode": "neg_inf_pad" if mode == "maxpool" else "zero_pad",
        "nan_propagation": "propagate_nan" if mode == "maxpool" else None,
        "window_dims": (2, 2),
        "strides": (2, 2),
        "pre_paddings": (0, 0),
        "post_paddings": (0, 0),
    }


CONVOLUTIONS: dict[str, Callable[[], Graph]] = {
    "convolution bias gelu": lambda: conv("gelu_fwd"),
    "convolution bias swish": lambda: conv("swish_fwd"),
    "convolution float8 amax": conv_float8,
    "convolution with statistics": conv_statistics,
    "data gradient relu": data_gradient_relu,
    "data gradient relu batch norm": data_gradient_batch_norm,
    "filter gradient of scaled data": filter_gradient_prologue,
    "batch norm finalize": batch_norm_finalize,
    "batch norm relu": batch_norm,
    "max pooling": lambda: pooling("maxpool"),
    "max pooling with indices": lambda: pooling("maxpool", True),
    "max pooling backward": lambda: pooling_backward("maxpool"),
    "average pooling": lambda: pooling("avgpool_include_padding"),
}
