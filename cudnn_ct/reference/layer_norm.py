"""Layer, RMS and adaptive layer normalisation, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..shapes import layer_norm as rules
from ..shapes.layer_norm import (
    LayerNormGradients,
    LayerNormMode,
    LayerNormResult,
    RMSNormGradients,
    RMSNormResult,
)
from ..shapes.norm import check_epsilon
from ..shapes.parse import as_bool
from ..shapes.specs import TensorSpec
from ._cast import Array, Outs, R, Result, deliver_each, present, required, wide
from .graph_nodes import norm, norm_backward


def layer_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    training: bool = True,
    out: Outs | None = None,
) -> LayerNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each row. See :func:`cudnn_ct.layer_norm`."""
    return _forward(LayerNormResult[Array], "layer_norm", x, scale, bias, epsilon, training, out)


def rms_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    training: bool = True,
    out: Outs | None = None,
) -> RMSNormResult[Array]:
    """Compute ``scale * x / sqrt(mean(x ** 2) + epsilon) + bias``. See :func:`cudnn_ct.rms_norm`."""
    return _forward(RMSNormResult[Array], "rms_norm", x, scale, bias, epsilon, training, out)


def ada_layer_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    training: bool = True,
    out: Outs | None = None,
) -> LayerNormResult[Array]:
    """Compute :func:`layer_norm` with parameters of each sample. See :func:`cudnn_ct.ada_layer_norm`."""
    return _forward(LayerNormResult[Array], "ada_layer_norm", x, scale, bias, epsilon, training, out)


def layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    *,
    out: Outs | None = None,
) -> LayerNormGradients[Array]:
    """Compute ``invstd * (g - E(g) - n E(g n))``, g = dy scale. See :func:`cudnn_ct.layer_norm_backward`."""
    statistics = {"mean": mean, "invstd": invstd}
    results = _backward("layer_norm", dy, x, scale, statistics)
    return deliver_each(LayerNormGradients[Array], results, 1, 0, out)


def rms_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    invrms: ArrayLike,
    *,
    bias_gradient: bool = False,
    out: Outs | None = None,
) -> RMSNormGradients[Array]:
    """Compute ``invrms * (g - n E(g n))`` with ``g = dy scale``. See :func:`cudnn_ct.rms_norm_backward`."""
    results = _backward("rms_norm", dy, x, scale, {"invrms": invrms})
    with_bias = as_bool(bias_gradient, "bias_gradient")
    absent = "" if with_bias else rules.WITHOUT_DBIAS
    kept = results if with_bias else results[:2]
    return deliver_each(RMSNormGradients[Array], kept, 1, 0, out, absent=absent)


def ada_layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    *,
    out: Outs | None = None,
) -> LayerNormGradients[Array]:
    """Compute the gradients of :func:`ada_layer_norm`. See :func:`cudnn_ct.ada_layer_norm_backward`."""
    statistics = {"mean": mean, "invstd": invstd}
    results = _backward("ada_layer_norm", dy, x, scale, statistics)
    return deliver_each(LayerNormGradients[Array], results, 1, 0, out)


def _forward(
    kind: type[R], mode: LayerNormMode, x: Any, scale: Any, bias: Any, epsilon: Any, training: bool, out: Any
) -> R:
    arrays = required(x=x, scale=scale) | present(bias=bias)
    problem = rules.row_norm(mode, _specs(arrays), (None, None, None), epsilon)
    at = problem.shape
    given = {name: at.parameter(wide(array)) for name, array in arrays.items() if name != "x"}
    given |= {"x": at.data(wide(arrays["x"])), "epsilon": np.float64(check_epsilon(epsilon))}
    made = norm(given, {"mode": mode, "normalized": (2,)})
    moments = [made[name] for name in ("mean", "inv_variance")[mode == "rms_norm" :]]
    results: list[Result] = [(made["y"].reshape(problem.x.shape), arrays["x"].dtype)]
    kept = np.dtype(np.float64 if arrays["x"].dtype == np.float64 else np.float32)
    results += [(moment.reshape(at.statistics), kept) for moment in moments]
    absent = "" if as_bool(training, "training") else rules.WITHOUT_STATISTICS
    return deliver_each(kind, results, 1, 0, out, absent=absent, count=len(moments))


def _backward(mode: LayerNormMode, dy: Any, x: Any, scale: Any, statistics: dict[str, Any]) -> list[Result]:
    """Return dx, dscale and dbias in float64, with their dtypes."""
    arrays = required(dy=dy, x=x, scale=scale, **statistics)
    at = rules.row_norm_gradient(mode, _specs(arrays), (None, None, None)).shape
    data = {name: at.data(wide(arrays[name])) for name in ("dy", "x")}
    moments = [at.statistic(wide(arrays[name])) for name in statistics]
    named = dict(zip(("mean", "inv_variance")[-len(moments) :], moments, strict=True))
    scale = at.parameter(wide(arrays["scale"]))
    made = norm_backward(data | named | {"scale": scale}, {"mode": mode, "normalized": (2,), "shapes": {}})
    results = {"dx": arrays["x"], "dscale": arrays["scale"], "dbias": arrays["scale"]}
    return [(made[name].reshape(like.shape), like.dtype) for name, like in results.items()]


def _specs(arrays: dict[str, Array]) -> dict[str, TensorSpec]:
    """Return the specs of operands; float64 exists here only, so the rules get float32."""
    wider = arrays["x"].dtype == np.float64

    def dtype(array: Array) -> Any:
        return np.dtype(np.float32) if wider and array.dtype == np.float64 else array.dtype

    return {name: TensorSpec.packed(array.shape, dtype(array)) for name, array in arrays.items()}
