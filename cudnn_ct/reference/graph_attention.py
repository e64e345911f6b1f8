"""Attention, softmax and rotary embeddings of graphs in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._cast import Float64

__all__ = ["ATTENTION"]

Operands = dict[str, Float64]
Results = dict[str, Any]


def _heads(given: Operands, name: str) -> Float64:
    """Return keys or values, from pages if there are any, repeated for the heads of q."""
    one = given[name]
    table = given.get(f"page_table_{name}")
    if table is not None:
        pages = np.moveaxis(one[table.astype(int)[:, 0, :, 0]], 2, 1)
        one = pages.reshape(*pages.shape[:2], -1, pages.shape[-1])
    return np.repeat(one, given["q"].shape[1] // one.shape[1], 1)


def _weights(given: Operands, p: dict[str, Any]) -> tuple[Float64, Float64]:
    """Return the softmax of the scores, and the logarithms of its sums."""
    q, k = given["q"], _heads(given, "k")
    scores = given["scale"].item() * np.matmul(q, k.swapaxes(2, 3))
    rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
    allowed = np.ones((1, 1, q.shape[2], k.shape[2]), bool)
    if p.get("causal"):
        allowed = allowed & (keys <= rows)
    if p.get("window"):
        allowed = allowed & (keys > rows - p["window"])
    for name, places in (("seq_len_q", rows), ("seq_len_kv", keys)):
        if name in given:
            allowed = allowed & (places < given[name])
    scores = np.where(allowed, scores, -np.inf)
    largest = np.max(scores, -1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total), largest + np.log(np.where(total == 0, 1, total))


def _sdpa(given: Operands, p: dict[str, Any]) -> Results:
    weights, stats = _weights(given, p)
    return {"o": weights @ _heads(given, "v"), "stats": stats}


def _sdpa_backward(given: Operands, p: dict[str, Any]) -> Results:
    weights, _ = _weights(given, p)
    q, do, scale = given["q"], given["do"], given["scale"].item()
    k, v = _heads(given, "k"), _heads(given, "v")
    dweights = do @ v.swapaxes(2, 3)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) * scale

    def grouped(each: Float64, like: Float64) -> Float64:
        batch, heads, length, depth = like.shape
        summed: Float64 = each.reshape(batch, heads, -1, length, depth).sum(2)
        return summed

    return {
        "dq": dscores @ k,
        "dk": grouped(dscores.swapaxes(2, 3) @ q, given["k"]),
        "dv": grouped(weights.swapaxes(2, 3) @ do, given["v"]),
    }


def _band(given: Operands, p: dict[str, Any]) -> Results:
    x = given["x"]
    rows, keys = np.arange(x.shape[2])[:, None], np.arange(x.shape[3])[None, :]
    past = p["comparison_mode"] == "cmp_ge"
    allowed = keys <= rows if past else keys + given["left_bound"].item() > rows
    return {"y": np.where(allowed, x, given["fill"].item())}


def _softmax(given: Operands, p: dict[str, Any]) -> Results:  # noqa: ARG001
    x = given["x"]
    largest = x.max(-1, keepdims=True)
    powers = np.exp(x - largest)
    total = powers.sum(-1, keepdims=True)
    return {"y": powers / total, "stats": largest + np.log(total)}


def _rope(given: Operands, p: dict[str, Any], sign: int = 1) -> Results:
    x = given["x"] if sign > 0 else given["dy"]
    width, factor = p.get("rope_dim") or x.shape[-1], p.get("output_scale") or 1.0
    angles = given["freqs"][:, 0, 0, :][None, None]
    rotated = x[..., -width:]
    low, high = rotated[..., : width // 2], rotated[..., width // 2 :]
    half = np.concatenate([-high, low], -1)
    turned = rotated * np.cos(angles) + sign * half * np.sin(angles)
    result = factor * np.concatenate([x[..., : x.shape[-1] - width], turned], -1)
    return {"y" if sign > 0 else "dx": result}


def _rope_backward(given: Operands, p: dict[str, Any]) -> Results:
    return _rope(given, p, -1)


ATTENTION: dict[str, Callable[[Operands, dict[str, Any]], Results]] = {
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "diagonal_band_mask": _band,
    "softmax": _softmax,
    "rope": _rope,
    "rope_backward": _rope_backward,
}
