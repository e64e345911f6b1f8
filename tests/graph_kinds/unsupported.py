"""Graphs that cuDNN builds and that no engine of an H200 computes; their attributes have the right types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_ct.graph.operations import Graph

from .draft import Draft
from .norms import norm

__all__ = ["UNSUPPORTED"]

SHAPE = (2, 8, 128, 128)


def alone(row: str, result: tuple[int, ...] = SHAPE, dtype: str = "bfloat16", **attributes: Any) -> Graph:
    """One node with an ``xdesc`` and a ``ydesc``."""
    draft = Draft()
    draft.add(row, xdesc=draft.input(SHAPE), ydesc=draft.result(result, dtype), **attributes)
    return draft.graph()


def softmax() -> Graph:
    draft = Draft()
    row = (*SHAPE[:3], 1)
    draft.add(
        "softmax",
        xdesc=draft.input(SHAPE, "float32"),
        ydesc=draft.result(SHAPE),
        stats_desc=draft.result(row, "float32"),
    )
    return draft.graph()


def random(distribution: str, seed: bool, **parameters: float) -> Graph:
    draft = Draft()
    given = draft.input((1, 1, 1, 1), "int64") if seed else 1234
    offset = draft.input((1, 1, 1, 1), "int64")
    y = draft.result(SHAPE, "float32")
    draft.add("rng", distribution=distribution, seed=given, offset_desc=offset, ydesc=y, **parameters)
    return draft.graph()


def concatenation() -> Graph:
    draft = Draft()
    parts = tuple(draft.input(SHAPE) for _ in range(3))
    draft.add("concat", axis=1, input_descs=parts, output_desc=draft.result((2, 24, 128, 128)))
    return draft.graph()


def quantization() -> Graph:
    """Blocks of 32 elements with a scale of powers of two."""
    draft = Draft()
    x = draft.input((1, 128, 256))
    y, scale = (
        draft.result((1, 128, 256), "float8_e4m3"),
        draft.result((1, 128, 8), "float8_e8m0", reordering="f8_128x4"),
    )
    draft.add("block_scale_quantize", xdesc=x, ydesc=y, scale_desc=scale, math_prec="float32", block_size=32)
    return draft.graph()


def grouped_matmul_backward() -> Graph:
    """Gradients of the weights of experts; see `matmuls.grouped_matmul`."""
    draft = Draft()
    experts, tokens, k, n = 8, 1024, 128, 512
    token, slope = draft.input((1, tokens, k)), draft.input((1, tokens, n))
    first = draft.input((experts, 1, 1), "int32")
    draft.add(
        "moe_grouped_matmul_backward",
        math_prec="float32",
        token_desc=token,
        doutput_desc=slope,
        first_token_offset_desc=first,
        dweight_desc=draft.result((experts, k, n), "bfloat16", (k * n, 1, k)),
    )
    return draft.graph()


def rotary(row: str, x: str, y: str) -> Graph:
    draft = Draft()
    given, angles = draft.input(SHAPE), draft.input((1, 1, 128, 128), "float32")
    tensors = {x: given, y: draft.result(SHAPE), "freqsdesc": angles}
    draft.add(row, **tensors, output_scale=1.0, rope_dim=128)
    return draft.graph()


def signal() -> Graph:
    draft = Draft()
    x, flag = draft.input(SHAPE), draft.input((1, 1, 1, 1), "int32")
    draft.add("signal", mode="wait", flagdesc=flag, value=1, xdesc=x, ydesc=draft.result(SHAPE))
    return draft.graph()


def band(row: str) -> Graph:
    draft = Draft()
    shapes = ((2, 8, 128, 128), (2, 8, 128, 17))
    x, y = shapes if row.startswith("contract") else shapes[::-1]
    draft.add(row, xdesc=draft.input(x), ydesc=draft.result(y), lower_bandwidth=8, upper_bandwidth=8, axis=3)
    return draft.graph()


UNSUPPORTED: dict[str, tuple[int, Callable[[], Graph]]] = {
    "softmax": (92000, softmax),
    "random numbers": (
        0,
        lambda: random("uniform", True, uniform_dist_minimum=0.0, uniform_dist_maximum=1.0),
    ),
    "random bits": (0, lambda: random("bernoulli", False, bernoulli_dist_probability=0.5)),
    "reshape": (0, lambda: alone("reshape", (2, 1024, 128, 1))),
    "transpose": (92200, lambda: alone("transpose", permutation=(0, 1, 3, 2))),
    "slice": (
        92200,
        lambda: alone(
            "slice",
            (2, 4, 128, 128),
            start_indices=(0, 0, 0, 0),
            limit_indices=(2, 4, 128, 128),
            strides=(1, 1, 1, 1),
        ),
    ),
    "concatenation": (0, concatenation),
    "block quantization": (90700, quantization),
    "grouped matmul backward": (92200, grouped_matmul_backward),
    "rotary embedding": (92400, lambda: rotary("rope_forward", "xdesc", "ydesc")),
    "rotary embedding backward": (92500, lambda: rotary("rope_backward", "dydesc", "dxdesc")),
    "signal": (0, signal),
    "expanded band": (91000, lambda: band("expand_band_matrix")),
    "contracted band": (91000, lambda: band("contract_band_matrix")),
    "group norm": (0, lambda: norm("group_norm")),
}
