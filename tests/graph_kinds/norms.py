"""Layer, RMS, instance and adaptive layer norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_ct.graph.operations import Graph
from cudnn_ct.shapes.specs import Shape, packed_strides

from .draft import Draft

__all__ = ["NORMS"]

ROWS, CHANNELS = 512, 1024
ADAPTIVE = (4, 128, 64)  # samples, rows and columns; compiling the gradient of 1,024 columns takes seconds


def shapes_of(mode: str) -> tuple[Shape, Shape, Shape, Shape | None]:
    """Return the shapes of x, its scale and its statistics, and the strides of x."""
    if mode == "ada_layer_norm":  # one scale and bias for each of the samples (B, S, C)
        return ADAPTIVE, (ADAPTIVE[0], 1, ADAPTIVE[2]), (*ADAPTIVE[:2], 1), None
    if mode == "instance_norm":
        images = (8, 32, 28, 28)
        return images, (1, 32, 1, 1), (8, 32, 1, 1), packed_strides(images, "nhwc")
    return (ROWS, CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (ROWS, 1, 1, 1), None


def norm(mode: str, phase: str = "training", dtype: str = "bfloat16", *, bias: bool = True) -> Graph:
    """A norm of rows (N, C, 1, 1); mean and inverse deviation are (N, 1, 1, 1) float32."""
    draft = Draft()
    shape, weight, row, strides = shapes_of(mode)
    x = draft.input(shape, dtype, strides)
    scale = draft.input(weight, "float32")
    more: dict[str, Any] = {}
    if bias:
        more["bias_desc"] = draft.input(weight, "float32")
    y = draft.result(shape, dtype, strides)
    if phase == "training":
        if mode != "rms_norm":
            more["mean_desc"] = draft.result(row, "float32")
        more["inv_variance_desc"] = draft.result(row, "float32")
    epsilon = draft.value(1e-5, rank=len(shape))
    draft.add(
        "norm_forward",
        mode=mode,
        phase=phase,
        xdesc=x,
        scale_desc=scale,
        epsilon_desc=epsilon,
        ydesc=y,
        **more,
    )
    return draft.graph()


def norm_backward(mode: str, dtype: str = "bfloat16", *, bias: bool = True) -> Graph:
    """Gradients of a norm: dx, dscale and dbias from dy, x, scale and the statistics of the forward pass."""
    draft = Draft()
    shape, weight, row, strides = shapes_of(mode)
    dy, x = draft.input(shape, dtype, strides), draft.input(shape, dtype, strides)
    scale = draft.input(weight, "float32")
    mean = draft.input(row, "float32") if mode != "rms_norm" else None
    deviation = draft.input(row, "float32")
    dx, dscale = draft.result(shape, dtype, strides), draft.result(weight, "float32")
    dbias = draft.result(weight, "float32") if bias else None
    draft.add(
        "norm_backward",
        mode=mode,
        xdesc=x,
        dydesc=dy,
        scale_desc=scale,
        mean_desc=mean,
        inv_variance_desc=deviation,
        dxdesc=dx,
        dscale_desc=dscale,
        dbias_desc=dbias,
    )
    return draft.graph()


NORMS: dict[str, Callable[[], Graph]] = {
    "layer norm": lambda: norm("layer_norm"),
    "layer norm inference": lambda: norm("layer_norm", "inference"),
    "layer norm float32": lambda: norm("layer_norm", dtype="float32"),
    "RMS norm": lambda: norm("rms_norm", bias=False),
    "RMS norm bias": lambda: norm("rms_norm"),
    "RMS norm inference": lambda: norm("rms_norm", "inference", bias=False),
    "instance norm": lambda: norm("instance_norm"),
    "ada layer norm": lambda: norm("ada_layer_norm"),
    "layer norm backward": lambda: norm_backward("layer_norm"),
    "layer norm backward float32": lambda: norm_backward("layer_norm", "float32"),
    "RMS norm backward": lambda: norm_backward("rms_norm", bias=False),
    "RMS norm backward bias": lambda: norm_backward("rms_norm"),
    "instance norm backward": lambda: norm_backward("instance_norm"),
    "ada layer norm backward": lambda: norm_backward("ada_layer_norm"),
}
