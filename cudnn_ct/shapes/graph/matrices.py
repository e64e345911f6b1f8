"""Rules of matrix products, reductions and statistics."""

from __future__ import annotations

from typing import Any

from ..checks import expect_dtype, expect_rank, expect_shape, some_axes
from ..specs import Shape
from .rules import Kind, Result, Specs, broadcast, described


def _matmul(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    a, b = specs["a"], specs["b"]
    for name, spec in (("a", a), ("b", b)):
        if len(spec.shape) < 2:
            raise ValueError(f"{name} is not a matrix: got shape {spec.shape}, expected at least 2 axes")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"inner dimensions of matmul differ: got a {a.shape} with {a.shape[-1]} columns and b {b.shape} "
            f"with {b.shape[-2]} rows"
        )
    batch = broadcast(a=a.shape[:-2], b=b.shape[:-2]) if max(len(a.shape), len(b.shape)) > 2 else ()
    return {"c": Result((*batch, a.shape[-2], b.shape[-1]))}


def _reduction(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    axes = attributes.pop("axes")
    reduced = tuple(range(len(x.shape))) if axes is None else some_axes(axes, len(x.shape), "axes")
    if not reduced:
        raise ValueError("axes are empty: got (), expected at least one axis to reduce")
    shape = tuple(1 if axis in reduced else length for axis, length in enumerate(x.shape))
    return {"y": Result(shape, like=x, stored="float32" if x.dtype != "float64" else "")}


def _gen_stats(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    x = specs["x"]
    expect_rank(x, "x", 4, 5)
    one = Result(_channels(x.shape), "float32", x, "float32")
    return {"sum": one, "sq_sum": one}


def _bn_finalize(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    shape = specs["y_sum"].shape
    for name, spec in specs.items():
        if name in ("epsilon", "exp_average_factor", "accum_count"):
            continue
        expect_shape(spec, name, shape)
    one = Result(shape, "float32", specs["y_sum"], "float32")
    names = ["eq_scale", "eq_bias", "saved_mean", "saved_inv_std"]
    if "prev_running_mean" in specs:
        names += ["updated_running_mean", "updated_running_var"]
    return dict.fromkeys(names, one)


def _bn_backward_weights(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    x = specs["x"]
    expect_rank(x, "x", 4, 5)
    expect_shape(specs["dy"], "dy", x.shape)
    for name in ("mean", "inv_std", "scale"):
        expect_shape(specs[name], name, _channels(x.shape))
    one = Result(_channels(x.shape), "float32", x, "float32")
    return dict.fromkeys(("dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias"), one)


def _moe_grouped_matmul(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    token, weight, offset = specs["token"], specs["weight"], specs["first_token_offset"]
    expect_rank(token, "token", 3)
    expect_rank(weight, "weight", 3)
    expect_dtype(offset, "first_token_offset", "int32")
    expect_shape(offset, "first_token_offset", (weight.shape[0], 1, 1))
    if token.shape[0] != 1:
        raise ValueError(f"token has the wrong shape: got {token.shape}, expected (1, tokens, features)")
    if token.shape[2] != weight.shape[1]:
        raise ValueError(
            f"features differ: got token {token.shape} with {token.shape[2]} and weight {weight.shape} "
            f"with {weight.shape[1]}"
        )
    mode = attributes.get("mode", "none")
    if (mode == "none") != ("token_index" not in specs):
        raise ValueError(f"token_index does not fit mode: got mode {mode!r}, expected 'none' without it")
    rows = token.shape[1]
    if mode == "gather":
        rows = specs["token_index"].shape[1]
    if mode == "scatter":
        rows = rows // int(attributes.get("top_k", 1))
    return {"output": Result((1, rows, weight.shape[2]))}


def _channels(shape: Shape) -> Shape:
    return (1, shape[1], *(1,) * (len(shape) - 2))


_OF_BN = "y_sum y_sq_sum scale bias prev_running_mean prev_running_var accum_count epsilon"
_BY_BN = "updated_running_mean updated_running_var saved_mean saved_inv_std eq_scale eq_bias"

MATRICES = {
    "matmul": Kind("matmul", {"a": "adesc", "b": "bdesc"}, {"c": "cdesc"}, _matmul, "comp_type"),
    "reduction": Kind("reduction", {"x": "xdesc"}, {"y": "ydesc"}, _reduction, "comp_type"),
    "gen_stats": Kind(
        "gen_stats", {"x": "xdesc"}, {"sum": "sumdesc", "sq_sum": "sqsumdesc"}, _gen_stats, "math_prec"
    ),
    "bn_finalize": Kind(
        "bn_finalize_statistics",
        {**described(_OF_BN), "exp_average_factor": "exp_averate_factor_desc"},
        described(_BY_BN),
        _bn_finalize,
        "math_prec",
    ),
    "bn_backward_weights": Kind(
        "bn_backward_weights",
        {**described("x dy mean"), "inv_std": "invstd_desc", "scale": "bn_scale_desc"},
        {
            "dscale": "dbn_scale_desc",
            "dbias": "dbn_bias_desc",
            "eq_dy_scale": "eq_dy_scale_desc",
            "eq_x_scale": "eq_x_scale_desc",
            "eq_bias": "eq_bias",
        },
        _bn_backward_weights,
        "math_prec",
    ),
    "moe_grouped_matmul": Kind(
        "moe_grouped_matmul",
        described("token weight first_token_offset token_index token_ks"),
        described("output"),
        _moe_grouped_matmul,
        "math_prec",
        "9.15",
    ),
}
