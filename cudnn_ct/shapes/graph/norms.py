"""Rules of normalisations, forward and backward, in all modes of `BackendNormMode`."""

from __future__ import annotations

from typing import Any

from ..checks import expect_shape, some_axes
from ..parse import as_choice
from ..specs import Shape, TensorSpec
from .rules import Kind, Result, Specs

NORM_MODES = ("layer_norm", "instance_norm", "batch_norm", "group_norm", "rms_norm", "ada_layer_norm")


def normalized_axes(mode: str, x: Shape, scale: Shape, axes: Any = None) -> Shape:
    """Return the axes over which a mode takes its statistics.

    Layer and RMS norm take the axes along which ``scale`` varies, adaptive layer norm the last one, instance
    norm the spatial axes, and batch norm these and the batch.
    """
    given = None if axes is None else tuple(sorted(some_axes(axes, len(x), "axes")))
    if mode in ("instance_norm", "group_norm", "batch_norm"):
        own = (*((0,) if mode == "batch_norm" else ()), *range(2, len(x)))
        if given not in (None, own):
            raise ValueError(f"axes are not those of {mode}: got {given}, expected {own}")
        return own
    if given is not None:
        return given
    if mode == "ada_layer_norm":
        return (len(x) - 1,)
    aligned = (1,) * (len(x) - len(scale)) + scale
    return tuple(axis for axis, length in enumerate(aligned) if length != 1) or (len(x) - 1,)


def _norm_forward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, scale = specs["x"], specs["scale"]
    mode, phase = _checked(specs, attributes)
    if "bias" in specs:
        expect_shape(specs["bias"], "bias", scale.shape)
    axes = normalized_axes(mode, x.shape, scale.shape, attributes.pop("axes", None))
    attributes["normalized"] = axes
    stats = Result(_kept(x.shape, axes), "float32", x, "float32")
    results = {"y": Result(x.shape, like=x)}
    if phase == "training":
        if mode != "rms_norm":
            results["mean"] = stats
        results["inv_variance"] = stats
    elif mode in ("batch_norm", "instance_norm"):
        for name in ("mean", "inv_variance"):
            if name in specs:
                expect_shape(specs[name], name, stats.shape)
    if "running_mean" in specs:
        for name in ("running_mean", "running_var"):
            expect_shape(specs[name], name, scale.shape)
        running = Result(scale.shape, "float32", scale, "float32")
        results |= {"next_running_mean": running, "next_running_var": running}
    return results


def _norm_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, scale = specs["x"], specs["scale"]
    mode, _ = _checked(specs, attributes)
    attributes.pop("phase", None)
    expect_shape(specs["dy"], "dy", x.shape)
    axes = normalized_axes(mode, x.shape, scale.shape, attributes.pop("axes", None))
    attributes["normalized"] = axes
    for name in ("mean", "inv_variance"):
        if name in specs:
            expect_shape(specs[name], name, _kept(x.shape, axes))
    of_scale = Result(scale.shape, "float32", scale, "float32")
    results = {"dx": Result(x.shape, like=x), "dscale": of_scale}
    if mode != "rms_norm" or attributes.pop("bias_gradient", False):
        results["dbias"] = of_scale
    attributes.pop("bias_gradient", None)
    return results


def _checked(specs: Specs, attributes: dict[str, Any]) -> tuple[str, str]:
    """Check the mode, the phase and the shape of the scale."""
    x, scale = specs["x"], specs["scale"]
    mode = as_choice(attributes["mode"], NORM_MODES, "mode")
    phase = as_choice(attributes.get("phase", "training"), ("inference", "training"), "phase")
    if len(x.shape) < 2:
        raise ValueError(f"x has the wrong rank: got shape {x.shape}, expected at least 2 axes")
    if mode in ("instance_norm", "batch_norm", "group_norm"):
        expected = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
        expect_shape(scale, "scale", expected)
    else:
        _expect_broadcastable(scale, x)
    return mode, phase


def _expect_broadcastable(scale: TensorSpec, x: TensorSpec) -> None:
    aligned = (1,) * (len(x.shape) - len(scale.shape)) + scale.shape
    if len(scale.shape) > len(x.shape) or any(
        length not in (1, own) for length, own in zip(aligned, x.shape, strict=True)
    ):
        raise ValueError(f"scale does not broadcast: got {scale.shape}, expected 1 or lengths of {x.shape}")


def _kept(shape: Shape, axes: Shape) -> Shape:
    return tuple(1 if axis in axes else length for axis, length in enumerate(shape))


_STATISTICS = {"mean": "mean_desc", "inv_variance": "inv_variance_desc"}

NORMS = {
    "norm_forward": Kind(
        "norm_forward",
        {
            "x": "xdesc",
            "scale": "scale_desc",
            "bias": "bias_desc",
            "epsilon": "epsilon_desc",
            "running_mean": "input_running_mean_desc",
            "running_var": "input_running_var_desc",
            "exp_average_factor": "exp_avg_factor_desc",
            **_STATISTICS,
        },
        {
            "y": "ydesc",
            "next_running_mean": "output_running_mean_desc",
            "next_running_var": "output_running_var_desc",
            **_STATISTICS,
        },
        _norm_forward,
    ),
    "norm_backward": Kind(
        "norm_backward",
        {"x": "xdesc", "dy": "dydesc", "scale": "scale_desc", "epsilon": "epsilon_desc", **_STATISTICS},
        {"dx": "dxdesc", "dscale": "dscale_desc", "dbias": "dbias_desc"},
        _norm_backward,
    ),
}
