"""Cases of attention that the fakes and the GPU tier share: named ones, and random ones by a seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from tests.strategies import Place

# The largest error, divided by the largest element of the result or 1.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}


class Case(NamedTuple):
    """Sizes, the memory order of q, k and v, and arguments of a call.

    ``layout`` is "bhsd" or "bshd", or "sliced" for operands that kernels cannot load. ``bias`` has the axes
    of the bias that are not shared, such as "hqk"; ``bias_dtype`` is that of q unless it is set. ``lengths``
    are those of queries and keys; packed sequences have no padding between them. ``page`` is the length of a
    block of a paged cache.
    """

    batch: int = 2
    heads: int = 4
    kv_heads: int = 4
    queries: int = 64
    keys: int = 64
    head: int = 64
    value_head: int = 64
    dtype: str = "float16"
    layout: str = "bhsd"
    bias: str = ""
    bias_dtype: str = ""
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    packed: bool = False
    page: int = 0
    arguments: tuple[tuple[str, Any], ...] = ()
    seed: int = 0
    level: float = 0.0  # of all scores: very low ones have shown defects of gradients

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        return dict(self.arguments)


def case(**fields: Any) -> Case:
    """Return a case; fields of other names are arguments of the call."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in Case._fields}
    return Case(**own, arguments=tuple(sorted(fields.items())))


LENGTHS = ((64, 17), (50, 64))
CASES = {
    "plain": case(),
    "bshd": case(layout="bshd", dtype="bfloat16"),
    "sliced": case(layout="sliced"),
    "grouped heads": case(kv_heads=2, head=128, value_head=128),
    "one head of keys": case(kv_heads=1),
    "causal": case(causal=True),
    "causal, fewer queries": case(causal=True, queries=24),
    "causal, more queries": case(causal="top_left", queries=100, keys=40),
    "bottom right, fewer queries": case(causal="bottom_right", queries=24),
    "bottom right, queries without keys": case(causal="bottom_right", queries=100, keys=40),
    "window": case(window=(9, 5), queries=80, keys=80),
    "window to the left": case(window=(9, None), queries=80, keys=80),
    "causal window": case(window=(9, -1), causal=True, queries=80, keys=80),
    "bottom right window": case(window=(9, 0), causal="bottom_right", queries=40, keys=80),
    "scale": case(scale=0.3),
    "odd sizes": case(queries=77, keys=53, head=40, value_head=72),
    "large heads": case(head=192, value_head=128, causal=True),
    "one query": case(queries=1, keys=128),
    "one query, grouped": case(queries=1, keys=130, kv_heads=2, causal="bottom_right"),
    "one query, top left": case(queries=1, keys=16, kv_heads=2, causal=True),
    "one key": case(keys=1),
    "one query and key": case(queries=1, keys=1),
    "bias": case(bias="bhqk"),
    "bias of heads": case(bias="hqk", causal=True),
    "bias of the batch": case(bias="bqk", queries=40, keys=72),
    "shared bias": case(bias="qk"),
    "bias of keys": case(bias="bk"),
    "bias of keys, causal": case(bias="k", causal=True, kv_heads=2, queries=40),
    "bias of float32": case(bias="hqk", bias_dtype="float32"),
    "bias of keys in float32": case(bias="bk", bias_dtype="float32", dtype="bfloat16"),
    "mask": case(bias="bqk", bias_dtype="bool", queries=40, keys=72),
    "mask of keys": case(bias="bk", bias_dtype="bool", dtype="bfloat16"),
    "lengths": case(lengths=LENGTHS),
    "lengths, causal": case(lengths=((64, 17), (64, 30)), causal=True, kv_heads=2),
    "lengths, bottom right": case(lengths=((50, 17), (50, 64)), causal="bottom_right"),
    "lengths, window": case(lengths=((50, 17), (60, 30)), window=(20, 3)),
    "lengths, bias": case(lengths=LENGTHS, bias="hqk"),
    "lengths of 0": case(lengths=((64, 0), (64, 64))),
    "no keys in a sequence": case(lengths=((64, 20), (64, 0))),
    "one query with lengths": case(queries=1, lengths=((1, 1), (64, 20)), kv_heads=2, causal="bottom_right"),
    "one query with lengths, window": case(
        queries=1, lengths=((1, 1), (64, 20)), kv_heads=2, causal="bottom_right", window=(9, 0)
    ),
    "packed": case(lengths=LENGTHS, packed=True),
    "packed, causal": case(lengths=((64, 17), (64, 17)), packed=True, causal=True, kv_heads=2),
    "packed, bottom right": case(lengths=((30, 17), (50, 64)), packed=True, causal="bottom_right"),
    "packed, bfloat16": case(lengths=((200, 1, 90), (200, 1, 90)), packed=True, dtype="bfloat16", batch=3),
    "packed, narrow values": case(
        lengths=((1, 1), (32, 42)), packed=True, kv_heads=1, heads=2, head=200, value_head=112
    ),
    "packed, narrowest values": case(lengths=LENGTHS, packed=True, kv_heads=2, head=256, value_head=8),
    "float32": case(dtype="float32", head=128, value_head=96),
    "float32, causal": case(dtype="float32", layout="bshd", causal=True, kv_heads=2, queries=100, keys=130),
    "float32, bottom right": case(dtype="float32", queries=24, causal="bottom_right", window=(9, 0)),
    "float32, bias": case(dtype="float32", bias="hqk", bias_dtype="float16", head=40, value_head=72),
    "float32, lengths": case(dtype="float32", lengths=LENGTHS, kv_heads=1),
    "float32, packed": case(dtype="float32", lengths=LENGTHS, packed=True, causal=True),
    "float32, paged": case(dtype="float32", page=16, lengths=((64, 17), (50, 64))),
    "float32, one query": case(dtype="float32", queries=1, keys=1000, layout="sliced"),
    "float32, low scores": case(dtype="float32", queries=192, keys=192, level=-120.0),
    "paged": case(page=16, lengths=((64, 17), (50, 64))),
    "paged, one query": case(page=16, queries=1, lengths=((1, 1), (50, 64)), kv_heads=2),
    "paged, bottom right": case(page=32, lengths=((20, 17), (50, 64)), causal="bottom_right"),
    "low scores": case(queries=192, keys=192, head=64, level=-120.0),
    "low scores, bias": case(queries=192, keys=192, head=64, level=-120.0, bias="hqk"),
    "low scores, one query": case(queries=1, keys=128, level=-120.0),
}
NO_GRADIENT = tuple(name for name in CASES if "paged" in name or "one key" in name or "query and key" in name)
NO_GRADIENT += ("one query, top left",)  # attends to one key
NO_GRADIENT += tuple(name for name in CASES if name.startswith("float32") and name not in NO_GRADIENT)


def random_case(seed: int) -> Case:
    """Return a random case: sizes, masks, layouts and operands that are allowed together."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    kv_heads = pick(1, 2, 3)
    queries, keys = (
        int(pick(*sizes)) for sizes in ((1, 2, 17, 64, 100, 192, 257), (2, 17, 64, 100, 192, 320))
    )
    fields: dict[str, Any] = {
        "batch": pick(1, 2, 3), "heads": kv_heads * pick(1, 1, 2, 4), "kv_heads": kv_heads,
        "queries": queries, "keys": keys, "head": pick(8, 32, 64, 64, 72, 128, 256),
        "dtype": pick("float16", "bfloat16"),
        "layout": pick("bhsd", "bshd", "sliced"), "seed": seed, "level": pick(0.0, 0.0, -100.0),
    }  # fmt: skip
    fields["value_head"] = pick(fields["head"], 64)
    kind = pick("", "", "bias", "lengths", "packed")
    causal = pick(False, False, True, "top_left", "bottom_right")
    if kind == "bias":
        fields["bias"] = pick("bhqk", "hqk", "bqk", "qk", "bk")
        fields["bias_dtype"] = pick("", "", "float32", "bool")
        causal = pick(False, True)
    if kind in ("lengths", "packed"):
        batch = fields["batch"]
        rows = tuple(int(n) for n in rng.integers(1, queries + 1, batch))
        columns = tuple(int(n) for n in rng.integers(1, keys + 1, batch))
        rows = tuple(map(min, rows, columns)) if causal == "bottom_right" else rows
        fields |= {"lengths": (rows, columns), "packed": kind == "packed"}
        fields["layout"] = "bhsd"
    if causal and kind != "lengths" and queries <= keys and pick(True, False):
        fields["window"] = (int(rng.integers(0, keys)), pick(None, 0))
    return case(**fields, causal=causal)


# --- operands ----------------------------------------------------------------------------------------------


class Operands(NamedTuple):
    """NumPy operands of a call, its keywords, the gradient of its result, and its lengths in a batch."""

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    keywords: dict[str, Any]
    dy: np.ndarray


def operands_of(given: Case) -> Operands:
    """Draw the operands of a case."""
    rng = np.random.default_rng(given.seed)
    dtype = as_dtype(given.dtype).numpy

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    def lying(*shape: int) -> np.ndarray:
        if given.layout == "bshd":
            return draw(shape[0], shape[2], shape[1], shape[3]).swapaxes(1, 2)
        if given.layout == "sliced":
            return draw(*shape[:3], shape[3] + 3)[..., 1:-2]
        return draw(*shape)

    batch, heads, kv_heads = given.batch, given.heads, given.kv_heads
    q = lying(batch, heads, given.queries, given.head)
    if given.page:
        pages = given.keys // given.page
        blocks = (batch * pages, kv_heads, given.page)
        k, v = draw(*blocks, given.head), draw(*blocks, given.value_head)
    else:
        k = lying(batch, kv_heads, given.keys, given.head)
        v = lying(batch, kv_heads, given.keys, given.value_head)
    keywords = given.keywords
    if given.level:  # the scores of all keys get this level through one element of the heads
        scale = keywords.get("scale", given.head**-0.5)
        size = abs(given.level / scale) ** 0.5
        q[..., 0], k[..., 0] = size, -size
    if given.bias:
        sizes = dict(zip("bhqk", (batch, heads, given.queries, given.keys), strict=True))
        bias = draw(*(size if axis in given.bias else 1 for axis, size in sizes.items()))
        keywords["bias"] = bias.astype(as_dtype(given.bias_dtype or given.dtype).numpy)
        if given.bias_dtype == "bool":
            keywords["bias"] = bias > -0.7  # of about three quarters of the keys
            keywords["bias"][..., 0] = True
    if given.lengths is not None and not given.packed:
        keywords |= {name: np.array(one, np.int32) for name, one in zip(_LENGTHS, given.lengths, strict=True)}
    if given.page:
        keywords["page_table"] = rng.permutation(batch * pages).reshape(batch, pages).astype(np.int32)
    if given.packed and given.lengths is not None:
        tokens = [sum(one) for one in given.lengths]
        q, k, v = (draw(tokens[0], heads, given.head), draw(tokens[1], kv_heads, given.head),
                   draw(tokens[1], kv_heads, given.value_head))  # fmt: skip
        offsets = [[0, *np.cumsum(one).tolist()] for one in given.lengths]
        keywords |= dict(zip(("offsets_q", "offsets_kv"), offsets, strict=True))
    dy = draw(*q.shape[:-1], given.value_head)
    return Operands((q, k, v), keywords, dy)


_LENGTHS = ("lengths_q", "lengths_kv")


def on_device(keywords: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return keywords with their arrays on the device."""
    return {name: place(one) if isinstance(one, np.ndarray) else one for name, one in keywords.items()}


def check_forward(given: Case, place: Place, **more: Any) -> None:
    """Compare attention with the reference."""
    arrays, keywords, _ = operands_of(given)
    expected = ct.reference.attention(*map(_wide, arrays), return_stats=True, **_in_float(keywords))
    found = ct.attention(*map(place, arrays), return_stats=True, **on_device(keywords, place), **more)
    close(found.y, expected.y, given)
    close(found.stats, expected.stats, given)


def check_backward(given: Case, place: Place, **more: Any) -> None:
    """Compare the gradients with those of the reference for the same y and stats."""
    arrays, keywords, dy = operands_of(given)
    wide = _in_float(keywords)
    y, stats = ct.reference.attention(*map(_wide, arrays), return_stats=True, **wide)
    with_bias = "bias" in keywords and keywords["bias"].dtype != bool
    expected = ct.reference.attention_backward(
        _wide(dy), *map(_wide, arrays), y, stats, dbias=with_bias, **wide
    )
    half = y.astype(dy.dtype), stats.astype(np.float32)
    found = ct.attention_backward(
        *map(place, (dy, *arrays, *half)), dbias=with_bias, **on_device(keywords, place), **more
    )
    for gradient, right in zip(found, expected, strict=True):
        if right is not None:
            close(gradient, right, given)


def close(found: Any, expected: np.ndarray, given: Case) -> None:
    """Raise unless a result is close to the reference; infinities must be at the same places."""
    values = np.asarray(found.numpy(), np.float64)
    right = np.asarray(expected, np.float64)
    infinite = np.isinf(right)
    np.testing.assert_array_equal(values[infinite], right[infinite])
    size = max(1.0, float(np.abs(right[~infinite]).max(initial=0)))
    worst = np.abs(np.where(infinite, 0, values) - np.where(infinite, 0, right)).max(initial=0) / size
    # Large elements of q and k multiply the rounding errors of weights, whose gradients have the sum 0.
    limit = TOLERANCES[given.dtype] * (10 if given.level else 1)
    assert worst <= limit, f"{given}: error {worst:.2g}, expected at most {limit}"


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _in_float(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keywords for the reference, whose floating-point arrays are float64."""
    return {
        name: _wide(one) if name == "bias" and one.dtype != bool else one for name, one in keywords.items()
    }
