"""Graphs of operations in float64, rounded where tensors are stored: a function for each kind of node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import GRAPH_DTYPES, as_dtype
from ..shapes.graph.kinds import KINDS
from ..shapes.graph.problem import GraphNode, GraphProblem, GraphValue, math_dtype
from ._definition import Array, Float64, round_once, summed_to, wide
from .attention import attention, attention_backward
from .conv import Windows, conv, conv_backward_data, conv_backward_filter, divisor
from .layers import pointwise
from .tensor import joined, reduced

Operands = dict[str, Float64]
Results = dict[str, Any]


def evaluate(one: GraphNode, operands: Operands, problem: GraphProblem) -> Results:
    """Return the results of a node by their roles."""
    attributes = dict(one.attributes)
    if one.kind.startswith("pointwise"):
        ((role, _),) = one.results
        return {role: pointwise(attributes["mode"], operands, attributes)}
    if one.kind not in _KINDS:
        raise ValueError(f"{one.kind} has no definition in NumPy: its result is defined by cuDNN alone")
    shapes = {role: value.spec.shape for role, value in problem.results_of(one).items()}
    return _KINDS[one.kind](operands, attributes | {"shapes": shapes})


# --- products and sums -------------------------------------------------------------------------------------


def _reduction(given: Operands, p: dict[str, Any]) -> Results:
    x, shape = given["x"], p["shapes"]["y"]
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return {"y": reduced(joined(x, axes), p["operator"], propagate_nan=True).reshape(shape)}


def _geometry(p: dict[str, Any]) -> dict[str, Any]:
    pairs = tuple(zip(p["pre_paddings"], p["post_paddings"], strict=True))
    return {
        "padding": pairs,
        "stride": p["filter_strides"],
        "dilation": p["dilations"],
        "mode": p["conv_mode"],
    }


def _conv(given: Operands, p: dict[str, Any]) -> Results:
    x, w = given["x"], given["w"]
    return {"y": conv(x, w, groups=x.shape[1] // w.shape[1], **_geometry(p))}


def _conv_data(given: Operands, p: dict[str, Any]) -> Results:
    shape, w = p["shapes"]["dx"], given["w"]
    groups = shape[1] // w.shape[1]
    return {"dx": conv_backward_data(given["dy"], w, shape, groups=groups, **_geometry(p))}


def _conv_filter(given: Operands, p: dict[str, Any]) -> Results:
    shape, x = p["shapes"]["dw"], given["x"]
    groups = x.shape[1] // shape[1]
    return {"dw": conv_backward_filter(given["dy"], x, shape, groups=groups, **_geometry(p))}


def _moe(given: Operands, p: dict[str, Any]) -> Results:
    if p.get("mode", "none") != "none":
        raise ValueError(f"mode {p['mode']!r} has no definition in NumPy; expected 'none'")
    (token,), weight = given["token"], given["weight"]
    starts = [*map(int, given["first_token_offset"].ravel()), len(token)]
    rows = [token[a:b] @ w for a, b, w in zip(starts, starts[1:], weight, strict=False)]
    return {"output": np.concatenate(rows)[None]}


# --- pooling -----------------------------------------------------------------------------------------------


def _windows(images: tuple[int, ...], counts: tuple[int, ...], p: dict[str, Any]) -> Windows:
    padding = tuple(zip(p["pre_paddings"], p["post_paddings"], strict=True))
    return Windows(images[2:], p["window_dims"], padding, p["strides"], (1,) * len(padding), counts[2:])


_DIVIDES = {"avgpool": "average_inc_pad", "avgpool_exclude_padding": "average_exc_pad"}


def _pool(given: Operands, p: dict[str, Any]) -> Results:
    x = given["x"]
    if p["mode"] == "bilinear":
        return {"y": _doubled(_doubled(x, 2), 3)}
    largest = p["mode"] == "maxpool"
    w = _windows(x.shape, next(iter(p["shapes"].values())), p)
    padded = w.pad(x, -np.inf if largest else 0)
    windows = np.stack([padded[pixels] for _, pixels in w.taps()])
    if largest:
        return {"y": windows.max(0), "indices": windows.argmax(0)}
    return {"y": windows.sum(0) / divisor(w, _DIVIDES[p["mode"]])}


def _doubled(x: Float64, axis: int) -> Float64:
    """Return x with the mean of an element and the next one behind each element; the last one repeats."""
    following = np.concatenate([x, x.take([-1], axis)], axis).take(range(1, x.shape[axis] + 1), axis)
    pairs = np.stack([x, (x + following) / 2], axis + 1)
    return pairs.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])


def _pool_backward(given: Operands, p: dict[str, Any]) -> Results:
    dy, shape = given["dy"], p["shapes"]["dx"]
    w = _windows(shape, dy.shape, p)
    dx = w.padded_zeros(*shape[:2])
    indices = given.get("indices")
    if p["mode"] == "maxpool" and indices is None:
        indices = _pool({"x": given["x"]}, p | {"shapes": {"y": dy.shape}})["indices"]
    share = dy if p["mode"] == "maxpool" else dy / divisor(w, _DIVIDES[p["mode"]])
    for number, (_, pixels) in enumerate(w.taps()):
        dx[pixels] += share if indices is None else share * (indices == number)
    return {"dx": w.crop(dx)}


# --- normalisation -----------------------------------------------------------------------------------------


def norm(given: Operands, p: dict[str, Any]) -> Results:
    """Return a normalisation over the axes ``normalized``, and its statistics."""
    x, axes, epsilon = given["x"], p["normalized"], given["epsilon"].item()
    rms = p["mode"] == "rms_norm"
    mean = np.zeros(()) if rms else x.mean(axes, keepdims=True)
    var = ((x - mean) ** 2).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(var + epsilon)
    y = (x - mean) * inverse * given["scale"] + given.get("bias", 0)
    results = {"y": y, "mean": mean, "inv_variance": inverse}
    if "running_mean" in given:
        factor, terms = given["exp_average_factor"].item(), prod(x.shape[axis] for axis in axes)
        unbiased = var * (terms / (terms - 1) if terms > 1 else 1)
        for name, now in (("mean", mean), ("var", unbiased)):
            results[f"next_running_{name}"] = (1 - factor) * given[f"running_{name}"] + factor * now
    return results


def norm_backward(given: Operands, p: dict[str, Any]) -> Results:
    """Return the gradients of a normalisation from its statistics."""
    x, dy, axes = given["x"], given["dy"], p["normalized"]
    scale, inverse = given["scale"], given["inv_variance"]
    rms = p["mode"] == "rms_norm"
    normal = (x - (0 if rms else given["mean"])) * inverse
    g = dy * scale
    dx = g - normal * (g * normal).mean(axes, keepdims=True)
    dx = inverse * (dx if rms else dx - g.mean(axes, keepdims=True))
    shape = p["shapes"].get("dscale") or p["shapes"].get("dbias") or scale.shape
    return {"dx": dx, "dscale": summed_to(dy * normal, shape), "dbias": summed_to(dy, shape)}


def _gen_stats(given: Operands, p: dict[str, Any]) -> Results:  # noqa: ARG001
    x = given["x"]
    axes = (0, *range(2, x.ndim))
    return {"sum": x.sum(axes, keepdims=True), "sq_sum": (x * x).sum(axes, keepdims=True)}


def bn_finalize(given: Operands, p: dict[str, Any]) -> Results:  # noqa: ARG001
    """Return the statistics of a batch normalisation from the sums of a convolution."""
    count, epsilon = given["accum_count"].item(), given["epsilon"].item()
    mean = given["y_sum"] / count
    var = given["y_sq_sum"] / count - mean * mean
    inverse = 1 / np.sqrt(var + epsilon)
    scale = given["scale"] * inverse
    results = {"eq_scale": scale, "eq_bias": given["bias"] - mean * scale}
    results |= {"saved_mean": mean, "saved_inv_std": inverse}
    if "prev_running_mean" in given:
        factor = given["exp_average_factor"].item()
        unbiased = var * (count / (count - 1) if count > 1 else 1)
        results["updated_running_mean"] = (1 - factor) * given["prev_running_mean"] + factor * mean
        results["updated_running_var"] = (1 - factor) * given["prev_running_var"] + factor * unbiased
    return results


def bn_backward_weights(given: Operands, p: dict[str, Any]) -> Results:  # noqa: ARG001
    """Return the gradients of scale and bias, and the factors of that of x."""
    x, dy, scale = given["x"], given["dy"], given["scale"]
    mean, inverse = given["mean"], given["inv_std"]
    axes = (0, *range(2, x.ndim))
    terms = prod(x.shape[axis] for axis in axes)
    dscale = (dy * (x - mean) * inverse).sum(axes, keepdims=True)
    dbias = dy.sum(axes, keepdims=True)
    of_dy = scale * inverse
    of_x = -of_dy * inverse * dscale / terms
    return {
        "dscale": dscale,
        "dbias": dbias,
        "eq_dy_scale": of_dy,
        "eq_x_scale": of_x,
        "eq_bias": -of_x * mean - of_dy * dbias / terms,
    }


# --- moving elements ---------------------------------------------------------------------------------------


def _slice(given: Operands, p: dict[str, Any]) -> Results:
    bounds = zip(p["start_indices"], p["limit_indices"], p["strides"], strict=True)
    return {"y": given["x"][tuple(slice(*bound) for bound in bounds)]}


def _paged(given: Operands, p: dict[str, Any]) -> Results:
    container, shape = given["container"], p["shapes"]["y"]
    loaded = _collected(container, given["page_table"])
    transposed = shape[2] == container.shape[3] and shape[3] != container.shape[3]
    return {"y": loaded[:, :, : shape[2]] if not transposed else loaded[:, :, : shape[3]].swapaxes(2, 3)}


def _collected(container: Float64, table: Float64) -> Float64:
    """Return the sequences (B, H, S, D) whose pages a table names."""
    pages: Float64 = np.moveaxis(container[table.astype(int)[:, 0, :, 0]], 2, 1)  # (B, H, pages, block, D)
    return pages.reshape(*pages.shape[:2], -1, pages.shape[-1])


def _dequantize(given: Operands, p: dict[str, Any]) -> Results:
    x, scale = given["x"], given["scale"]
    (axis,) = [axis for axis in range(x.ndim) if x.shape[axis] != scale.shape[axis]] or [x.ndim - 1]
    each = np.repeat(scale, p["block_size"], axis)
    return {"y": x * np.take(each, range(x.shape[axis]), axis)}


# --- attention ---------------------------------------------------------------------------------------------


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
    k, v = (
        _collected(given[name], given[table]) if (table := f"page_table_{name}") in given else given[name]
        for name in "kv"
    )
    return given["q"], k, v


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


# --- all kinds ---------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[[Operands, dict[str, Any]], Results]] = {
    "matmul": lambda given, _: {"c": np.matmul(given["a"], given["b"])},
    "reduction": _reduction,
    "conv_forward": _conv,
    "conv_backward_data": _conv_data,
    "conv_backward_filter": _conv_filter,
    "moe_grouped_matmul": _moe,
    "resample_forward": _pool,
    "resample_backward": _pool_backward,
    "norm_forward": norm,
    "norm_backward": norm_backward,
    "gen_stats": _gen_stats,
    "bn_finalize": bn_finalize,
    "bn_backward_weights": bn_backward_weights,
    "reshape": lambda given, p: {"y": given["x"].reshape(p["shapes"]["y"])},
    "transpose": lambda given, p: {"y": given["x"].transpose(p["permutation"])},
    "slice": _slice,
    "concat": lambda given, p: {"y": np.concatenate(list(given.values()), p["axis"])},
    "paged_cache_load": _paged,
    "block_scale_dequantize": _dequantize,
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "diagonal_band_mask": _band,
    "softmax": _softmax,
    "rope": _rope,
    "rope_backward": partial(_rope, sign=-1),
}


# --- graphs -------------------------------------------------------------------------------------------------


# Infinities and NaN are valid data, and cuDNN gives no warnings either.
@np.errstate(all="ignore")
def graph(built: Any, /, *arrays: ArrayLike, **named: ArrayLike) -> Any:
    """Compute the outputs of a built graph, or of a graph's ``define(...)``. See :class:`cudnn_ct.Graph`."""
    problem = built if isinstance(built, GraphProblem) else getattr(built, "problem", None)
    if not isinstance(problem, GraphProblem):
        raise TypeError(
            f"built is not a graph: got {type(built).__name__}, expected a BuiltGraph or the result of "
            "Graph.define"
        )
    values: dict[int, Float64] = {}
    for place, array in zip(problem.inputs, _ordered(problem, arrays, named), strict=True):
        values[place] = wide(_checked(np.asarray(array), problem.values[place]))
    for place, value in enumerate(problem.values):
        if value.role == "constant":
            # The number that the plan passes: rounded to its dtype.
            values[place] = wide(np.asarray(value.value).astype(GRAPH_DTYPES[value.spec.dtype].numpy))
    stored: dict[int, Array] = {}
    for one in problem.nodes:
        operands = {role: _read(values[place], place, one, problem) for role, place in one.operands}
        computed = evaluate(one, operands, problem)
        for role, place in one.results:
            value = problem.values[place]
            result = np.broadcast_to(computed[role], value.spec.shape)
            values[place] = _rounded(result, value)
            if value.role == "output":
                stored[place] = round_once(values[place], _numpy(value))
    results = tuple(stored[place] for place in problem.outputs)
    return results[0] if len(results) == 1 else results


def _read(values: Float64, place: int, one: GraphNode, problem: GraphProblem) -> Float64:
    """Return an operand as an operation reads it: integers are rounded to the dtype of its arithmetic."""
    row = KINDS[one.kind].row
    math = math_dtype(one, problem) if row == "pointwise" else problem.compute
    integers = "int" in problem.values[place].spec.dtype
    if not integers or "int" in math or row not in ("pointwise", "reduction", "matmul"):
        return values
    return wide(round_once(values, GRAPH_DTYPES[math].numpy))


def _rounded(values: Array, value: GraphValue) -> Float64:
    """Round a result to the dtype of its tensor; float32 between operations stays in float64."""
    if value.role == "virtual" and value.spec.dtype in ("float32", "float64", "bool"):
        return np.asarray(values, np.float64)
    return wide(round_once(np.asarray(values, np.float64), _numpy(value)))


def _numpy(value: GraphValue) -> np.dtype[Any]:
    return GRAPH_DTYPES[value.spec.dtype].numpy


def _ordered(problem: GraphProblem, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    names = [problem.values[place].name for place in problem.inputs]
    rest = names[len(arrays) :]
    if len(arrays) > len(names) or set(named) != set(rest):
        raise TypeError(
            f"inputs do not match: got {len(arrays)} arrays and {sorted(named)}, expected {', '.join(names)}"
        )
    return [*arrays, *(named[name] for name in rest)]


def _checked(array: Array, value: GraphValue) -> Array:
    if array.shape != value.spec.shape:
        raise ValueError(f"{value.name} has the wrong shape: got {array.shape}, expected {value.spec.shape}")
    if as_dtype(array.dtype).name != value.spec.dtype:
        raise TypeError(f"{value.name} has the wrong dtype: got {array.dtype}, expected {value.spec.dtype}")
    return array
