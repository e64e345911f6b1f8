"""Layer, RMS and adaptive layer normalisation, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

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
from . import _signatures as signatures
from ._cast import Array, R, Result, wide
from ._definition import Arguments, defined
from .graph_nodes import norm, norm_backward


@defined(signatures.layer_norm)
def layer_norm(p: Arguments) -> LayerNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each row. See :func:`cudnn_ct.layer_norm`."""
    return _forward(LayerNormResult[Array], "layer_norm", p)


@defined(signatures.rms_norm)
def rms_norm(p: Arguments) -> RMSNormResult[Array]:
    """Compute ``scale * x / sqrt(mean(x ** 2) + epsilon) + bias``. See :func:`cudnn_ct.rms_norm`."""
    return _forward(RMSNormResult[Array], "rms_norm", p)


@defined(signatures.ada_layer_norm)
def ada_layer_norm(p: Arguments) -> LayerNormResult[Array]:
    """Compute :func:`layer_norm` with parameters of each sample. See :func:`cudnn_ct.ada_layer_norm`."""
    return _forward(LayerNormResult[Array], "ada_layer_norm", p)


@defined(signatures.layer_norm_backward)
def layer_norm_backward(p: Arguments) -> LayerNormGradients[Array]:
    """Compute ``invstd * (g - E(g) - n E(g n))``, g = dy scale. See :func:`cudnn_ct.layer_norm_backward`."""
    return p.deliver_each(LayerNormGradients[Array], _backward("layer_norm", p, "mean", "invstd"))


@defined(signatures.rms_norm_backward)
def rms_norm_backward(p: Arguments) -> RMSNormGradients[Array]:
    """Compute ``invrms * (g - n E(g n))`` with ``g = dy scale``. See :func:`cudnn_ct.rms_norm_backward`."""
    results = _backward("rms_norm", p, "invrms")
    with_bias = as_bool(p.bias_gradient, "bias_gradient")
    absent = "" if with_bias else rules.WITHOUT_DBIAS
    return p.deliver_each(RMSNormGradients[Array], results if with_bias else results[:2], absent)


@defined(signatures.ada_layer_norm_backward)
def ada_layer_norm_backward(p: Arguments) -> LayerNormGradients[Array]:
    """Compute the gradients of :func:`ada_layer_norm`. See :func:`cudnn_ct.ada_layer_norm_backward`."""
    return p.deliver_each(LayerNormGradients[Array], _backward("ada_layer_norm", p, "mean", "invstd"))


def _forward(kind: type[R], mode: LayerNormMode, p: Arguments) -> R:
    arrays = p.required("x", "scale") | p.present("bias")
    problem = rules.row_norm(mode, _specs(arrays), (None, None, None), p.epsilon)
    at = problem.shape
    given = {name: at.parameter(wide(array)) for name, array in arrays.items() if name != "x"}
    given |= {"x": at.data(wide(arrays["x"])), "epsilon": np.float64(check_epsilon(p.epsilon))}
    made = norm(given, {"mode": mode, "normalized": (2,)})
    moments = [made[name] for name in ("mean", "inv_variance")[mode == "rms_norm" :]]
    results: list[Result] = [(made["y"].reshape(problem.x.shape), arrays["x"].dtype)]
    kept = np.dtype(np.float64 if arrays["x"].dtype == np.float64 else np.float32)
    results += [(moment.reshape(at.statistics), kept) for moment in moments]
    absent = "" if as_bool(p.training, "training") else rules.WITHOUT_STATISTICS
    return p.deliver_each(kind, results, absent, len(moments))


def _backward(mode: LayerNormMode, p: Arguments, *statistics: str) -> list[Result]:
    """Return dx, dscale and dbias in float64, with their dtypes."""
    arrays = p.required("dy", "x", "scale", *statistics)
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
