"""Rules of convolutions and resampling (pooling)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..checks import expect_rank, expect_shape
from ..conv import conv_geometry, conv_output_shape
from ..parse import as_choice
from ..pooling import pool_geometry, pool_output_shape
from ..specs import Shape, TensorSpec, check_shape
from .rules import Kind, Result, Specs

POOLING = ("avgpool", "avgpool_exclude_padding", "maxpool")


def _conv_forward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, w = specs["x"], specs["w"]
    return {"y": Result(_convolved(x.shape, w.shape, attributes), like=x)}


def _conv_backward_data(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy, w = specs["dy"], specs["w"]
    shape = check_shape(attributes.pop("x_shape"), "x_shape")
    expect_shape(dy, "dy", _convolved(shape, w.shape, attributes))
    return {"dx": Result(shape, like=dy)}


def _conv_backward_filter(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy, x = specs["dy"], specs["x"]
    shape = check_shape(attributes.pop("w_shape"), "w_shape")
    expect_shape(dy, "dy", _convolved(x.shape, shape, attributes))
    return {"dw": Result(shape, like=x)}


def _convolved(x: Shape, w: Shape, attributes: dict[str, Any]) -> Shape:
    """Check a convolution, replace its parameters by cuDNN's attributes, and return the shape of y."""
    for name, shape in (("x", x), ("w", w)):
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"{name} has the wrong rank: got shape {shape}, expected 3 to 5 axes")
    if len(w) != len(x):
        raise ValueError(f"w has the wrong rank: got shape {w}, expected {len(x)} axes as in x {x}")
    if w[1] == 0 or x[1] % w[1]:
        raise ValueError(f"channels differ: got x {x} with {x[1]} and w {w}, expected a multiple of {w[1]}")
    padding, stride, dilation = (attributes.pop(name) for name in ("padding", "stride", "dilation"))
    groups, axes = x[1] // w[1], len(x) - 2
    y = conv_output_shape(x, w, padding=padding, stride=stride, dilation=dilation, groups=groups)
    pairs, strides, dilations = conv_geometry(w[2:], padding, stride, dilation)
    attributes.update(
        conv_mode=as_choice(attributes.get("conv_mode"), ("cross_correlation", "convolution"), "mode"),
        spatial_dims=axes,
        pre_paddings=tuple(before for before, _ in pairs),
        post_paddings=tuple(after for _, after in pairs),
        filter_strides=strides,
        dilations=dilations,
    )
    return y


def _resample_forward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    mode = as_choice(attributes["mode"], (*POOLING, "bilinear"), "mode")
    if mode == "bilinear":
        return {"y": Result(_doubled(x, attributes), like=x)}
    y = _pooled(x, attributes)
    indices = {"indices": Result(y, "int8", x, "int8")} if attributes["mode"] == "maxpool" else {}
    return {"y": Result(y, like=x), **indices}


def _resample_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy = specs["dy"]
    shape = check_shape(attributes.pop("x_shape"), "x_shape")
    x = TensorSpec.packed(shape, dy.dtype)
    expect_shape(dy, "dy", _pooled(x, attributes))
    if "indices" in specs:
        expect_shape(specs["indices"], "indices", dy.shape)
    elif attributes["mode"] == "maxpool" and not {"x", "y"} <= set(specs):
        raise ValueError("indices are missing: the gradient of maxpool needs indices, or x and y")
    return {"dx": Result(shape, like=dy)}


def _doubled(x: TensorSpec, attributes: dict[str, Any]) -> Shape:
    """Set the only attributes with which cuDNN has engines for bilinear interpolation.

    They have engines for three spatial axes, too, which write wrong results.
    """
    expect_rank(x, "x", 4)
    given = {name: attributes.pop(name, None) for name in ("window", "stride", "padding")}
    for name, value in given.items():
        if value not in (None, 0):
            raise ValueError(f"{name} is not for mode='bilinear', which doubles both axes: got {value}")
    half = (Fraction(1, 2),) * 2
    attributes.update(
        mode="bilinear",
        spatial_dims=2,
        window_dims=(2, 2),
        strides=half,
        pre_paddings=half,
        post_paddings=(1, 1),
        padding_mode="edge_val_pad",
        nan_propagation="propagate_nan",
    )
    return (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])


def _pooled(x: TensorSpec, attributes: dict[str, Any]) -> Shape:
    expect_rank(x, "x", 4, 5)
    window, stride, padding = (attributes.pop(name) for name in ("window", "stride", "padding"))
    mode = as_choice(attributes["mode"], POOLING, "mode")
    y = pool_output_shape(x.shape, window=window, stride=stride, padding=padding)
    geometry = pool_geometry(x.shape, window, stride, padding)
    attributes.update(
        mode=mode,
        spatial_dims=len(geometry.window),
        window_dims=geometry.window,
        strides=geometry.stride,
        pre_paddings=tuple(before for before, _ in geometry.padding),
        post_paddings=tuple(after for _, after in geometry.padding),
        padding_mode="neg_inf_pad" if mode == "maxpool" else "zero_pad",
        nan_propagation="propagate_nan",
    )
    return y


WINDOWS = {
    "conv_forward": Kind("conv_forward", {"x": "x", "w": "w"}, {"y": "y"}, _conv_forward, "comp_type"),
    "conv_backward_data": Kind(
        "conv_backward_data", {"dy": "dy", "w": "w"}, {"dx": "dx"}, _conv_backward_data, "comp_type"
    ),
    "conv_backward_filter": Kind(
        "conv_backward_filter", {"dy": "dy", "x": "x"}, {"dw": "dw"}, _conv_backward_filter, "comp_type"
    ),
    "resample_forward": Kind(
        "resample_forward",
        {"x": "xdesc"},
        {"y": "ydesc", "indices": "idxdesc"},
        _resample_forward,
        "comp_type",
    ),
    "resample_backward": Kind(
        "resample_backward",
        {"dy": "dydesc", "indices": "idxdesc", "x": "xdesc", "y": "ydesc"},
        {"dx": "dxdesc"},
        _resample_backward,
        "comp_type",
    ),
}
