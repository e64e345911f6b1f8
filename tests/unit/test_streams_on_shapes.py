"""Streams and devices that calls on shapes are given, which they check as other calls do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_ct as ct
from tests.layers import LayerCase
from tests.op_cases import CASES
from tests.planned_calls import drawn, shape_of


def built() -> ct.BuiltGraph:
    g = ct.Graph()
    a = g.input((4, 4))
    return g.build(a @ a)


def entered(**where: Any) -> object:
    with ct.use(**where) as stream:
        return stream


USES_OF_STREAMS: dict[str, Callable[[Any], object]] = {
    "empty": lambda stream: ct.empty(2, stream=stream),
    "full": lambda stream: ct.full(2, 1, stream=stream),
    "asarray": lambda stream: ct.asarray([1, 2], stream=stream),
    "from_pointer": lambda stream: ct.from_pointer(256, (2,), "float32", stream=stream),
    "use": lambda stream: entered(stream=stream),
    "synchronize": ct.synchronize,
    "copy": lambda stream: ct.zeros(2).copy(stream=stream),
    "astype": lambda stream: ct.zeros(2).astype("float16", stream=stream),
    "reshape": lambda stream: ct.zeros((2, 3)).T.reshape(6, stream=stream),
    "fill": lambda stream: ct.zeros(2).fill(1, stream=stream),
    "Graph.build": lambda stream: built().prepare(stream),
    "BuiltGraph": lambda stream: built()(ct.zeros((4, 4)), stream=stream),
    "RNN.forward": lambda stream: ct.RNN("gru", 3, 4).forward(
        ct.zeros((5, 2, 3)), ct.zeros((ct.RNN("gru", 3, 4).weight_size,)), stream=stream
    ),
    "attention": lambda stream: ct.attention(
        *[ct.zeros((1, 4, 8, 64), "float16")] * 3, lengths_q=[3], lengths_kv=[3], stream=stream
    ),
    "scale": lambda stream: ct.scale(ct.zeros(2), alpha=2, stream=stream),
}
WRONG_STREAMS: list[tuple[object, type[Exception], str]] = [
    ("a stream", TypeError, "stream must be an address or have __cuda_stream__: got str"),
    (1.5, TypeError, "stream must be an address or have __cuda_stream__: got float"),
    (-1, ValueError, r"stream must be an address: got -1, expected 0 to 2\*\*64 - 1"),
    (2, ValueError, r"the per-thread default stream \(2\) is not supported"),
    (SimpleNamespace(__cuda_stream__=(7,)), TypeError, r"got \(7,\), expected \(version, address\)"),
]


@pytest.mark.parametrize("use", USES_OF_STREAMS)
def test_streams_are_checked_on_shapes(use: str) -> None:
    with ct.record_plans(shapes_only=True):
        for stream in (None, 0, 12345, SimpleNamespace(__cuda_stream__=(0, 7)), entered()):
            USES_OF_STREAMS[use](stream)
        for wrong, error, words in WRONG_STREAMS:
            with pytest.raises(error, match=words):
                USES_OF_STREAMS[use](wrong)


def test_all_operations_check_their_stream_on_shapes() -> None:
    seen = set()

    def make(case: LayerCase) -> None:
        outs = {name: shape_of(one) for name, one in case.outs.items()}
        if case.more:
            outs["out"] = (outs.get("out"), *map(shape_of, case.more))
        seen.add(case.operation)
        call = partial(getattr(ct, case.operation), *map(shape_of, case.operands), **case.keywords)
        with ct.record_plans(shapes_only=True), pytest.raises(TypeError, match="stream must be an address"):
            call(**outs, stream="a stream")

    drawn(0, 3, [row.operations[0] for row in CASES if row.operations[0] != "RNN"], make)
    assert len(seen) > 40


@pytest.mark.parametrize(
    "use",
    [
        lambda device: entered(device=device),
        ct.empty_cache,
        lambda device: ct.from_pointer(256, (2,), "float32", device=device),
    ],
)
def test_devices_are_checked_on_shapes(use: Callable[[Any], object]) -> None:
    with ct.record_plans(shapes_only=True):
        use(7)  # any GPU may be meant
        with pytest.raises(TypeError, match="device must be an int: got str"):
            use("cuda")
        with pytest.raises(ValueError, match="device -1 does not exist"):
            use(-1)
