"""The table of all kinds of operations in a graph, and rules of products, reductions, norms and attention."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from cudnn_doctor.read.files import resource

from ..attention_rules import check_bias
from ..checks import as_choice, expect_dtype, expect_rank, expect_shape, some_axes
from ..specs import Shape, TensorSpec
from . import problem, windows
from .problem import Kind, Result, Specs, broadcast


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


# --- normalisations ----------------------------------------------------------------------------------------

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


# --- attention ---------------------------------------------------------------------------------------------


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


def _diagonal_band_mask(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    expect_rank(specs["x"], "x", 4)
    return {"y": Result(specs["x"].shape, like=specs["x"])}


def _softmax(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    expect_rank(x, "x", 4)
    results = {"y": Result(x.shape, like=x)}
    if attributes.pop("stats", False):
        results["stats"] = Result((*x.shape[:3], 1), "float32", stored="float32")
    return results


def _rotated(name: str, result: str, specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, freqs = specs[name], specs["freqs"]
    expect_rank(x, name, 4)
    width = attributes.get("rope_dim") or x.shape[3]
    if not 0 < width <= x.shape[3] or width % 2:
        raise ValueError(f"rope_dim is invalid: got {width}, expected an even number up to {x.shape[3]}")
    expect_shape(freqs, "freqs", (x.shape[2], 1, 1, width))
    return {result: Result(x.shape, like=x)}


_rope, _rope_backward = partial(_rotated, "x", "y"), partial(_rotated, "dy", "dx")


# --- the table of all kinds; the rule of a kind ``name`` is a function ``_name`` ---------------------------

_RULES = {**vars(problem), **vars(windows), **globals()}
KINDS = {
    name: Kind(_RULES[f"_{name}"], **{"row": name, **row})
    for name, row in json.loads(resource("cudnn_ct/shapes/graph/kinds.json")).items()
}
