"""Rules of attention, its parts, softmax and rotary position embedding."""

from __future__ import annotations

from typing import Any

from ..attention_rules import check_bias
from ..checks import expect_dtype, expect_rank, expect_shape
from ..specs import Shape
from .rules import Kind, Result, Specs


def _sdpa(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    shape, q = _attended(specs), specs["q"]
    results = {"o": Result(shape, like=q, stored=q.dtype)}
    if attributes.pop("stats", False):
        results["stats"] = Result((*shape[:3], 1), "float32", stored="float32")
    return results


def _sdpa_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    shape = _attended(specs)
    for name in ("o", "do"):
        expect_shape(specs[name], name, shape)
    expect_shape(specs["stats"], "stats", (*shape[:3], 1))
    expect_dtype(specs["stats"], "stats", "float32")
    names = ["q", "k", "v"]
    if attributes.pop("dbias"):
        if "bias" not in specs:
            raise ValueError("dbias=True needs a bias: got bias=None")
        names.append("bias")
    return {
        f"d{name}": Result(specs[name].shape, like=specs[name], stored=specs[name].dtype) for name in names
    }


def _attended(specs: Specs) -> Shape:
    """Check the operands of attention and return the shape (B, H, Sq, Dv) of its result."""
    q, k, v = (specs[name] for name in "qkv")
    for name in "qkv":
        expect_rank(specs[name], name, 4)
    batch, heads, queries, depth = q.shape
    blocks, kv_heads, keys, _ = k.shape
    tables = [specs[name] for name in ("page_table_k", "page_table_v") if name in specs]
    if not tables and blocks != batch:
        raise ValueError(f"k has the wrong batch: got {k.shape}, expected {batch} as in q")
    if k.shape[3] != depth:
        raise ValueError(f"k has the wrong depth: got {k.shape} with {k.shape[3]}, expected {depth} as in q")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"k has {kv_heads} heads: expected a divisor of the {heads} heads of q {q.shape}")
    expect_shape(v, "v", (*k.shape[:3], v.shape[3]))
    for name, table in zip(("page_table_k", "page_table_v"), tables, strict=False):
        expect_rank(table, name, 4)
        expect_shape(table, name, (batch, 1, tables[0].shape[2], 1))
        expect_dtype(table, name, "int32")
    keys *= tables[0].shape[2] if tables else 1
    for name in ("seq_len_q", "seq_len_kv"):
        if name in specs:
            expect_shape(specs[name], name, (batch, 1, 1, 1))
            expect_dtype(specs[name], name, "int32")
    if "bias" in specs:
        check_bias(specs["bias"], (q.dtype,), (batch, heads, queries, keys))
    return (batch, heads, queries, v.shape[3])


def _band_mask(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    expect_rank(specs["x"], "x", 4)
    return {"y": Result(specs["x"].shape, like=specs["x"])}


def _softmax(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    expect_rank(x, "x", 4)
    results = {"y": Result(x.shape, like=x)}
    if attributes.pop("stats", False):
        results["stats"] = Result((*x.shape[:3], 1), "float32", stored="float32")
    return results


def _rope(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    (name,) = {"x", "dy"} & set(specs)
    x, freqs = specs[name], specs["freqs"]
    expect_rank(x, name, 4)
    width = attributes.get("rope_dim") or x.shape[3]
    if not 0 < width <= x.shape[3] or width % 2:
        raise ValueError(f"rope_dim is invalid: got {width}, expected an even number up to {x.shape[3]}")
    expect_shape(freqs, "freqs", (x.shape[2], 1, 1, width))
    return {"y" if name == "x" else "dx": Result(x.shape, like=x)}


_SEQUENCES = {"seq_len_q": "seq_len_qdesc", "seq_len_kv": "seq_len_kvdesc"}
_BOUNDS = {"left_bound": "left_bound_desc", "shift_right_bound": "shift_right_bound_desc", "fill": "bdesc"}

ATTENTION = {
    # They have no node of their own: `ops.graph.attention_problem` describes the operations of cuDNN.
    "sdpa": Kind("", {}, {}, _sdpa, since="9.10.2"),
    "sdpa_backward": Kind("", {}, {}, _sdpa_backward, since="9.10.2"),
    "diagonal_band_mask": Kind(
        "diagonal_band_mask",
        {"x": "xdesc", **_BOUNDS, **_SEQUENCES},
        {"y": "ydesc"},
        _band_mask,
        since="9.20",
    ),
    "softmax": Kind("softmax", {"x": "xdesc"}, {"y": "ydesc", "stats": "stats_desc"}, _softmax, since="9.20"),
    "rope": Kind("rope_forward", {"x": "xdesc", "freqs": "freqsdesc"}, {"y": "ydesc"}, _rope, since="9.24"),
    "rope_backward": Kind(
        "rope_backward", {"dy": "dydesc", "freqs": "freqsdesc"}, {"dx": "dxdesc"}, _rope, since="9.25"
    ),
}
