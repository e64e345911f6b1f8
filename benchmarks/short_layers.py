"""Layers, products and decoding against PyTorch on shapes that are drawn, for `all.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

from short_pairs import Pair, Row, copying, drawn_tensor, rows_of

DTYPES = ("float32", "float16", "bfloat16")


def layers(*, rounds: int, seed: int, **_: Any) -> Iterator[Row]:
    """Yield layers that move memory: softmax, dropout, reductions, activations, sums and products."""
    yield from rows_of(
        {name: partial(with_floor, kind, *drawn) for name, kind, drawn in shapes(seed)}, rounds
    )


def with_floor(kind: str, shape: tuple[int, int], dtype: str) -> Pair:
    """Return a pair whose floor is a copy of the bytes that must be read and written."""
    arrays = {"reduction": 1, "max without NaN": 1, "add or multiply": 3}.get(kind, 2)
    nbytes = arrays * shape[0] * shape[1] * (4 if dtype == "float32" else 2)
    return LAYERS[kind](shape, dtype)._replace(floor=copying(nbytes))


def shapes(seed: int) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Yield names, kinds, and a shape and a dtype: matrices of 2**22 to 2**26 elements."""
    source = random.Random(seed)
    for kind in LAYERS:
        for _ in range(8 if kind == "softmax" else 4):
            columns = source.choice((64, 100, 257, 1000, 1024, 3000, 4096, 10_000, 32_000))
            rows = max(1, 2 ** source.randint(22, 26) // columns)
            dtype = source.choice(DTYPES)
            yield f"{kind}, {rows} x {columns}, {dtype}", kind, ((rows, columns), dtype)


def softmax(shape: tuple[int, int], dtype: str) -> Pair:
    import torch

    import cudnn_ct as ct

    x = drawn_tensor(shape, dtype)
    out = torch.empty_like(x)
    return Pair(lambda: ct.softmax(x, axis=1, out=out), lambda: torch.softmax(x, 1, out=out))


def dropout(shape: tuple[int, int], dtype: str) -> Pair:
    import torch
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct as ct

    x, state = drawn_tensor(shape, dtype), ct.DropoutState(0.1, seed=1)
    with torch.inference_mode(False):
        return Pair(lambda: ct.dropout(x, state).y, lambda: F.dropout(x, 0.1, True), near=None)


def reduction(shape: tuple[int, int], dtype: str) -> Pair:
    import cudnn_ct as ct

    x = drawn_tensor(shape, dtype)
    axis = shape[1] % 2
    return Pair(lambda: ct.reduce(x, axis=axis), lambda: x.sum(axis))


def maximum(shape: tuple[int, int], dtype: str) -> Pair:
    import cudnn_ct as ct

    x = drawn_tensor(shape, dtype)
    return Pair(lambda: ct.reduce(x, op="max", axis=1, propagate_nan=False), lambda: x.amax(1))


def activation(shape: tuple[int, int], dtype: str) -> Pair:
    import torch

    import cudnn_ct as ct

    x = drawn_tensor(shape, dtype)
    out = torch.empty_like(x)
    return Pair(lambda: ct.activation(x, mode="tanh", out=out), lambda: torch.tanh(x, out=out))


def arithmetic(shape: tuple[int, int], dtype: str) -> Pair:
    import torch

    import cudnn_ct as ct

    x, b = drawn_tensor(shape, dtype), drawn_tensor(shape, dtype)
    out = torch.empty_like(x)
    if shape[1] % 2:
        return Pair(lambda: ct.op_tensor(x, b, op="mul", out=out), lambda: torch.mul(x, b, out=out))
    return Pair(lambda: ct.op_tensor(x, b, op="add", out=out), lambda: torch.add(x, b, out=out))


def norm(shape: tuple[int, int], dtype: str) -> Pair:
    """Return layer normalisations of rows of 3,000 elements."""
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct as ct

    x = drawn_tensor((shape[0] * shape[1] // 3000, 3000), dtype)
    scale, bias = drawn_tensor((3000,), dtype), drawn_tensor((3000,), dtype)
    return Pair(
        lambda: ct.layer_norm(x, scale, bias, training=False).y,
        lambda: F.layer_norm(x, (3000,), scale, bias),
    )


LAYERS: dict[str, Callable[..., Pair]] = {
    "softmax": softmax,
    "dropout": dropout,
    "reduction": reduction,
    "max without NaN": maximum,
    "activation": activation,
    "add or multiply": arithmetic,
    "norm": norm,
}


# --- products ----------------------------------------------------------------------------------------------

PRODUCTS = ((4096, 1024, 4096), (8192, 768, 3072), (2048, 4096, 4096), (16384, 512, 2048))


def products(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield products of half precision with bias and activation, of both peers, and of float8."""
    pairs = {
        f"{activation} / {peer}, {sizes}": partial(product, activation, peer, sizes)
        for activation in ("gelu", "relu")
        for peer in ("eager", "cublasLt")
        for sizes in PRODUCTS
    }
    pairs |= {f"float8, {sizes}": partial(float8_product, sizes) for sizes in PRODUCTS}
    yield from rows_of(pairs, rounds)


def product(activation: str, peer: str, sizes: tuple[int, int, int]) -> Pair:
    """Return a linear layer; cuBLASLt's own epilogue has gelu by its approximation with tanh."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct as ct

    m, k, n = sizes
    x, w, bias = (drawn_tensor(shape, "float16") for shape in ((m, k), (n, k), (n,)))
    w *= k**-0.5
    mode = "gelu_tanh" if activation == "gelu" and peer == "cublasLt" else activation

    def ours() -> Any:
        return ct.matmul(x, w.T, bias=bias, activation=mode)

    def alone() -> Any:
        return torch.mm(x, w.T)

    if peer == "cublasLt":
        gelu = activation == "gelu"
        return Pair(ours, lambda: torch._addmm_activation(bias, x, w.T, use_gelu=gelu), floor=alone)
    function = F.gelu if activation == "gelu" else F.relu
    return Pair(ours, lambda: function(F.linear(x, w, bias)), floor=alone)


def float8_product(sizes: tuple[int, int, int]) -> Pair:
    """Return a product with PyTorch's defaults: sums are not rounded in between, as ours."""
    import torch

    import cudnn_ct as ct

    m, k, n = sizes
    a, b = (drawn_tensor(shape).to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
    one, bias = torch.ones((), device="cuda"), drawn_tensor((n,), "bfloat16")
    scale = one.reshape(1)
    return Pair(
        lambda: ct.scaled_matmul(a, b.T, descale_a=scale, descale_b=scale, bias=bias, out_dtype="bfloat16").y,
        lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, bias=bias, out_dtype=torch.bfloat16),
    )


def turns(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield products whose results take turns in memory: a GPU waits for graphs that are launched in turn."""
    pairs = {f"product, {count} results in turn": partial(product_in_turn, count) for count in (1, 16, 128)}
    yield from rows_of(pairs, rounds)


def product_in_turn(count: int, sizes: tuple[int, int, int] = (8192, 768, 3072)) -> Pair:
    import torch

    import cudnn_ct as ct

    m, k, n = sizes
    x, w, bias = (drawn_tensor(shape, "float16") for shape in ((m, k), (k, n), (n,)))
    results = [torch.empty((m, n), device="cuda", dtype=x.dtype) for _ in range(count)]
    ours, theirs = cycle(results), cycle(results)
    return Pair(
        lambda: ct.matmul(x, w, bias=bias, out=next(ours)),
        lambda: torch.addmm(bias, x, w, out=next(theirs)),
    )


# --- decoding ----------------------------------------------------------------------------------------------


def decoding(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield attention of one query to a paged cache against a contiguous one, both ours."""
    pairs = {f"{batch} x {keys}": partial(decode, batch, keys) for batch in (8, 64) for keys in (1024, 4096)}
    yield from rows_of(pairs, rounds)


def decode(batch: int, keys: int, heads: int = 8, head: int = 128, page: int = 64) -> Pair:
    import torch

    import cudnn_ct as ct

    q = drawn_tensor((batch, 4 * heads, 1, head), "bfloat16")
    k, v = (drawn_tensor((batch, heads, keys, head), "bfloat16") for _ in range(2))
    pages = keys // page
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32).reshape(batch, pages)

    def paged(x: Any) -> Any:
        blocks = x.reshape(batch, heads, pages, page, head).transpose(1, 2).reshape(-1, heads, page, head)
        kept = torch.empty_like(blocks)
        kept[table.reshape(-1).long()] = blocks
        return kept

    cache_k, cache_v = paged(k), paged(v)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    ones = torch.ones(batch, dtype=torch.int32, device="cuda")
    return Pair(
        lambda: ct.attention(q, cache_k, cache_v, page_table=table, lengths_q=ones, lengths_kv=lengths).y,
        lambda: ct.attention(q, k, v, lengths_q=ones, lengths_kv=lengths).y,
    )
