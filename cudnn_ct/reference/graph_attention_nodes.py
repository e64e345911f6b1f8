"""Attention, softmax and rotary embeddings of graphs in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ._cast import Float64
from .attention import attention, attention_backward

Operands = dict[str, Float64]
Results = dict[str, Any]


def _sdpa(given: Operands, p: dict[str, Any]) -> Results:
    y, stats = attention(*_qkv(given), **_keywords(given, p), return_stats=True)
    assert stats is not None
    return {"o": y, "stats": stats[..., None]}


def _sdpa_backward(given: Operands, p: dict[str, Any]) -> Results:
    saved = given["o"], given["stats"][..., 0].astype(np.float32)
    made = attention_backward(given["do"], *_qkv(given), *saved, dbias="bias" in given, **_keywords(given, p))
    return made._asdict()


def _qkv(given: Operands) -> tuple[Float64, Float64, Float64]:
    """Return queries, keys and values, whose pages are collected."""
    return given["q"], _keys(given, "k"), _keys(given, "v")


def _keys(given: Operands, name: str) -> Float64:
    one, table = given[name], given.get(f"page_table_{name}")
    if table is None:
        return one
    pages: Float64 = np.moveaxis(one[table.astype(int)[:, 0, :, 0]], 2, 1)
    return pages.reshape(*pages.shape[:2], -1, pages.shape[-1])


def _keywords(given: Operands, p: dict[str, Any]) -> dict[str, Any]:
    left, right, corner = p.get("band") or (None, None, "top_left")
    band = {"causal": corner if corner == "bottom_right" else False, "window": (left, right)}
    lengths = {f"lengths_{name}": given.get(f"seq_len_{name}") for name in ("q", "kv")}
    found = {name: one.astype(int)[:, 0, 0, 0] for name, one in lengths.items() if one is not None}
    if "lengths_kv" in found:  # those of queries are optional for paged keys
        batch, _, queries, _ = given["q"].shape
        found.setdefault("lengths_q", np.full(batch, queries))
    return {"scale": given["scale"].item(), "bias": given.get("bias"), **band, **found}


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


ATTENTION: dict[str, Callable[[Operands, dict[str, Any]], Results]] = {
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "diagonal_band_mask": _band,
    "softmax": _softmax,
    "rope": _rope,
    "rope_backward": partial(_rope, sign=-1),
}
