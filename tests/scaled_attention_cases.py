"""Cases of attention of float8 that the fakes and the GPU tier share, and the errors that rounding allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.attention import WEIGHT_SCALE
from tests.attention_cases import on_device
from tests.strategies import Place

Exact = Callable[..., tuple[np.ndarray, np.ndarray]]  # attention in float64, and its statistics

# Largest error of a rounded number: relative to it, or in absolute terms near zero.
RELATIVE = {"float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}
ABSOLUTE = {"float8_e4m3": 2.0**-10, "float8_e5m2": 2.0**-17}
# Errors of sums relative to the sum of magnitudes: Hopper's float8 products keep some 13 bits of a sum.
SUMS = 0.03
STATS = 0.02


class Case(NamedTuple):
    """Sizes, the memory order of q, k and v, and arguments of a call.

    ``layout`` is "bhsd" or "bshd", or "sliced" for operands that kernels cannot load. ``scaled`` names the
    scales that the call gets. ``slope`` is added to the scores of a query from the first key to the last, and
    ``rest`` to v at each key but the first.
    """

    batch: int = 2
    heads: int = 4
    kv_heads: int = 4
    queries: int = 64
    keys: int = 64
    head: int = 64
    value_head: int = 64
    dtype: str = "float8_e4m3"
    out_dtype: str | None = None
    layout: str = "bhsd"
    causal: bool | str = False
    scale: float | None = None
    scaled: tuple[str, ...] = ("descale_q", "descale_k", "descale_v", "scale_s", "descale_s", "scale_o")
    slope: float = 0.0
    rest: float = 0.0
    seed: int = 0


CASES = {
    "plain": Case(),
    "e5m2": Case(dtype="float8_e5m2"),
    "e4m3 to e5m2": Case(out_dtype="float8_e5m2"),
    "e5m2 to e4m3": Case(dtype="float8_e5m2", out_dtype="float8_e4m3"),
    "bshd": Case(layout="bshd"),
    "sliced": Case(layout="sliced", kv_heads=2),
    "no scales": Case(scaled=()),
    "no scales, e5m2": Case(scaled=(), dtype="float8_e5m2", causal=True),
    "scales of operands": Case(scaled=("descale_q", "descale_v")),
    "scale of the result": Case(scaled=("scale_o",)),
    "scale": Case(scale=0.3),
    "grouped heads": Case(kv_heads=2, head=128, value_head=128, causal=True),
    "one head of keys": Case(kv_heads=1),
    "causal": Case(causal=True, queries=192, keys=192),
    "causal, bshd": Case(causal="bottom_right", queries=128, keys=128, layout="bshd"),
    "causal, fewer queries": Case(causal=True, queries=40, keys=160),
    "causal, more queries": Case(causal="top_left", queries=160, keys=40),
    "odd sizes": Case(batch=1, queries=77, keys=53, head=48, value_head=80),
    "odd sizes, causal": Case(queries=333, keys=301, causal=True),
    "few keys": Case(queries=100, keys=3),
    "one key": Case(queries=16, keys=1),
    "two queries": Case(queries=2, keys=130),
    "small heads": Case(head=16, value_head=16),
    "large heads": Case(head=192, value_head=128, causal=True, queries=128, keys=256),
    "wide values": Case(head=64, value_head=128),
    "many keys": Case(batch=1, heads=2, kv_heads=1, queries=256, keys=2048, head=128, value_head=128),
    "growing scores": Case(batch=1, heads=2, kv_heads=2, queries=128, keys=1024, slope=40.0),
    "falling scores": Case(batch=1, heads=2, kv_heads=2, queries=128, keys=1024, slope=-40.0),
    # Rows that are no queries would have the mean of v, which is above every result.
    "no other rows": Case(queries=100, keys=64, slope=-150.0, rest=8.0),
    "no other rows, e5m2": Case(queries=16, keys=64, slope=-150.0, rest=8.0, dtype="float8_e5m2", scaled=()),
    "no other rows, causal": Case(queries=130, keys=40, slope=-40.0, rest=8.0, causal=True, layout="bshd"),
}


class Operands(NamedTuple):
    """float8 operands of a call, the values that they stand for, and the keywords of the call."""

    arrays: tuple[np.ndarray, ...]
    wide: tuple[np.ndarray, ...]
    keywords: dict[str, Any]


def operands_of(given: Case) -> Operands:
    """Draw the operands of a case, and quantise them."""
    rng = np.random.default_rng(given.seed)
    dtype = as_dtype(given.dtype).numpy
    factors = {"descale_q": 0.25, "descale_k": 0.5, "descale_v": 0.125, "scale_s": 64.0, "scale_o": 8.0}
    factors["descale_s"] = 1 / factors["scale_s"]
    scales = {name: value for name, value in factors.items() if name in given.scaled}
    batch, heads, kv_heads = given.batch, given.heads, given.kv_heads
    shapes = {
        "q": (batch, heads, given.queries, given.head),
        "k": (batch, kv_heads, given.keys, given.head),
        "v": (batch, kv_heads, given.keys, given.value_head),
    }
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if given.slope:  # through one element of the heads
        values["q"][..., 0] = 8.0
        steps = np.linspace(0, given.slope, given.keys) * given.head**0.5 / 8
        values["k"][..., 0] = steps - steps.mean()
    values["v"][:, :, 1:] += given.rest
    arrays, wide = [], []
    for name, one in values.items():
        descale = scales.get(f"descale_{name}", 1.0)
        rounded = (one / descale).astype(dtype)
        arrays.append(_lying(rounded, given.layout))
        wide.append(rounded.astype(np.float64) * descale)
    keywords: dict[str, Any] = {name: np.full(1, value, np.float32) for name, value in scales.items()}
    if given.out_dtype:
        keywords["out_dtype"] = given.out_dtype
    if given.scale:
        keywords["scale"] = given.scale
    return Operands(tuple(arrays), tuple(wide), keywords | {"causal": given.causal})


def _lying(array: np.ndarray, layout: str) -> np.ndarray:
    if layout == "bshd":
        return array.swapaxes(1, 2).copy().swapaxes(1, 2)
    if layout == "sliced":
        padded = np.zeros((*array.shape[:3], array.shape[3] + 3), array.dtype)
        padded[..., 1:-2] = array
        return padded[..., 1:-2]
    return array


def check(given: Case, place: Place, exact: Exact, **more: Any) -> Any:
    """Compare a call with attention of the dequantised operands in float64, and return its results."""
    arrays, wide, keywords = operands_of(given)
    found = ct.scaled_attention(
        *map(place, arrays), **on_device(keywords, place), return_stats=True, amax=True, **more
    )
    numbers = [np.asarray(ct.asarray(one).numpy(), np.float64) for one in found]
    check_values(given, numbers, exact(*wide, scale=given.scale, causal=bool(given.causal)))
    return found


def check_values(given: Case, found: list[np.ndarray], exact: tuple[np.ndarray, np.ndarray]) -> None:
    """Compare y, stats and amax with the result in float64 by the errors that rounding allows."""
    y, stats, amax = found
    result, exact_stats = exact
    _, wide, keywords = operands_of(given)
    values = np.repeat(np.abs(wide[2]), given.heads // given.kv_heads, axis=1)
    weights = _weights(given, wide, exact_stats)
    name, out = given.dtype, given.out_dtype or given.dtype
    scale_s = float(keywords["scale_s"][0]) if "scale_s" in keywords else WEIGHT_SCALE[name]
    scale_o = float(keywords["scale_o"][0]) if "scale_o" in keywords else 1.0
    magnitudes = weights @ values
    flushed = ABSOLUTE[name] / scale_s * ((weights > 0) @ values)
    bound = (RELATIVE[name] + SUMS) * magnitudes + flushed
    largest = scale_o * bound * (1 + RELATIVE[out]) + RELATIVE[out] * np.abs(scale_o * result) + ABSOLUTE[out]
    error = np.abs(y - scale_o * result)
    worst = (error / largest).max()
    assert worst <= 1, f"{worst:.3g} of the largest error; {(error > largest).sum()} of {error.size} elements"
    # The rounding of weights is random, so errors are much smaller in the mean.
    spread = np.sqrt(RELATIVE[name] ** 2 * (weights**2 @ values**2)) + 0.3 * SUMS * magnitudes + flushed
    usual = scale_o * spread + RELATIVE[out] * np.abs(scale_o * result) + ABSOLUTE[out]
    mean = np.sqrt((error**2).mean() / (usual**2).mean())
    assert mean <= 1, f"the errors are {mean:.3g} of those expected in the mean"
    factor = (y * result).sum() / (scale_o * result**2).sum()
    assert abs(factor - 1) <= RELATIVE[out] / 2, f"the result is {factor:.3f} of that expected in the mean"
    np.testing.assert_allclose(stats, exact_stats, rtol=1e-3, atol=STATS)  # sums have 13 bits
    top = np.abs(result).max()
    assert abs(amax.item() - top) <= bound.max(), f"amax is {amax.item()}, not {top}"
    rounding = RELATIVE[out] * scale_o * amax.item() + ABSOLUTE[out]
    assert abs(np.abs(y).max() - scale_o * amax.item()) <= rounding, f"y has {np.abs(y).max()}, amax {amax}"


def _weights(given: Case, wide: tuple[np.ndarray, ...], stats: np.ndarray) -> np.ndarray:
    """Return the weights in float64 for the statistics of a call."""
    q, k, _ = wide
    k = np.repeat(k, given.heads // given.kv_heads, axis=1)
    scores = (given.scale or given.head**-0.5) * (q @ k.swapaxes(2, 3))
    weights = np.exp(scores - stats[..., None])
    if given.causal:
        weights = weights * (np.arange(given.keys) <= np.arange(given.queries)[:, None])
    return weights
