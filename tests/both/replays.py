"""Random sequences of calls, replayed as CUDA graphs and not, compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct import testing

__all__ = ["configured", "test_sequences_of_calls_have_the_same_bits_with_and_without_replays"]

SHAPE = (2, 4, 6, 6)
SLOTS = 4  # arrays of one shape, which take turns as operands and results


def new_or(out: Any) -> dict[str, Any]:
    return {} if out is None else {"out": out}


_prepared: dict[str, Any] = {}  # plans of the run


def by_plan(a: Any, w: Any, out: Any) -> Any:
    """Convolve by a plan, which takes arrays with the strides that it was prepared for."""
    if any(array is not None and array.strides != ct.empty(SHAPE).strides for array in (a, out)):
        return ct.conv(a, w, padding=1, **new_or(out))
    if "conv" not in _prepared:
        _prepared["conv"] = ct.conv_plan(a, w, padding=1)
    return _prepared["conv"](a, w, **new_or(out))


def by_graph(a: Any, b: Any, out: Any) -> Any:
    """Add by a built graph, which takes arrays with the strides that it was built for."""
    if any(array is not None and array.strides != ct.empty(SHAPE).strides for array in (a, b, out)):
        return ct.op_tensor(a, b, op="add", **new_or(out))
    if "add" not in _prepared:
        g = ct.Graph()
        _prepared["add"] = g.build(g.input(SHAPE) + g.input(SHAPE))
    return _prepared["add"](a, b, **new_or(out))


# Each takes two operands and an array for the result, or None.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv": lambda a, w, out: ct.conv(a, w, padding=1, **new_or(out)),
    "conv_backward_data": lambda a, w, out: ct.conv_backward_data(a, w, SHAPE, padding=1, **new_or(out)),
    "relu": lambda a, b, out: ct.activation(a, **new_or(out)),
    "softmax": lambda a, b, out: ct.softmax(a, **new_or(out)),
    "half": lambda a, b, out: ct.activation(a, mode="tanh", alpha=0.5, **new_or(out)),
    "lrn": lambda a, b, out: ct.lrn(a, **new_or(out)),
    "product": lambda a, b, out: ct.op_tensor(a, b, op="mul", alpha1=0.25, **new_or(out)),
    "pool": lambda a, b, out: ct.pool(a, window=3, padding=1, stride=1, **new_or(out)),
    "conv_plan": by_plan,
    "graph": by_graph,
}
# Each changes an array in place.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: ct.transform(b, alpha=0.5, beta=0.5, out=a) if a.memory is not b.memory else a,
    "scale": lambda a, b: ct.scale(a, alpha=0.5),
    "negative": lambda a, b: ct.scale(a, alpha=-0.0),
    "fill": lambda a, b: ct.fill(a, 0.25),
    "clear": lambda a, b: a.fill(0.5),
}

numbers = st.integers(0, SLOTS - 1)
streams = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(list(CALLS)), numbers, numbers, numbers, streams),
    st.tuples(st.just("into"), st.sampled_from(list(CALLS)), numbers, numbers, numbers, streams),
    st.tuples(st.just("change"), st.sampled_from(list(CHANGES)), numbers, numbers, streams),
    st.tuples(st.just("write"), numbers, st.integers(0, 99), streams),
    st.tuples(st.just("view"), numbers, numbers),
    st.tuples(st.just("drop"), numbers),
    st.just(("empty_cache",)),
)
programs = st.lists(steps, min_size=1, max_size=8)


def values(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(program: Sequence[tuple[Any, ...]], repeats: int, where: Sequence[Any]) -> list[bytes]:
    """Run a program several times on the same slots; return the contents of all slots after each run."""
    _prepared.clear()
    slots = [ct.asarray(values(seed)) for seed in range(SLOTS)]
    w = ct.asarray(values(SLOTS, (4, 4, 3, 3)) / 6)
    seen = []
    for _ in range(repeats):
        for kind, *facts in program:
            STEPS[kind](slots, w, where, *facts)
        seen += [slot.numpy().tobytes() for slot in slots]
    _prepared.clear()
    return seen


def call(
    slots: list[Any], w: Any, where: Sequence[Any], name: str, a: int, b: int, at: int, stream: int
) -> None:
    with ct.use(stream=where[stream]):
        slots[at] = CALLS[name](slots[a], w if name.startswith("conv") else slots[b], None)


def into(
    slots: list[Any], w: Any, where: Sequence[Any], name: str, a: int, b: int, at: int, stream: int
) -> None:
    owners = [slots[number].memory for number in (a, b)]
    if slots[at].memory not in owners:  # else the result would overlap an operand
        with ct.use(stream=where[stream]):
            CALLS[name](slots[a], w if name.startswith("conv") else slots[b], slots[at])


def change(slots: list[Any], w: Any, where: Sequence[Any], name: str, a: int, b: int, stream: int) -> None:
    with ct.use(stream=where[stream]):
        CHANGES[name](slots[a], slots[b])


def write(slots: list[Any], w: Any, where: Sequence[Any], at: int, seed: int, stream: int) -> None:
    with ct.use(stream=where[stream]):
        ct.transform(ct.asarray(values(seed)), out=slots[at])


def view(slots: list[Any], w: Any, where: Sequence[Any], a: int, at: int) -> None:
    slots[at] = slots[a].transpose(0, 1, 3, 2)


def drop(slots: list[Any], w: Any, where: Sequence[Any], at: int) -> None:
    slots[at] = None  # so that its memory may be taken by the next array
    slots[at] = ct.asarray(values(at))


def empty(slots: list[Any], w: Any, where: Sequence[Any]) -> None:
    ct.empty_cache()


STEPS: dict[str, Callable[..., None]] = {
    "call": call, "into": into, "change": change, "write": write, "view": view, "drop": drop,
    "empty_cache": empty,
}  # fmt: skip


@contextmanager
def configured(**values: Any) -> Iterator[None]:
    """Change settings within a block."""
    before = {name: getattr(ct.config, name) for name in values}
    for name, value in values.items():
        setattr(ct.config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(ct.config, name, value)


@given(program=programs)
def test_sequences_of_calls_have_the_same_bits_with_and_without_replays(
    side_streams: tuple[Any, Any], program: list[tuple[Any, ...]]
) -> None:
    """Arrays are dropped, made again at the same address, viewed, and written by other streams in between."""
    where = (None, *side_streams)
    with configured(deterministic=True, replay=False):
        expected = run(program, 4, where)
    with configured(deterministic=True, replay=True), testing.replay_after(1):
        assert run(program, 4, where) == expected
