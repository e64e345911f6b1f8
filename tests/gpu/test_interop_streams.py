"""The order of work of torch, cupy, numba and jax and of this package, on default streams and on others.

The work that comes first is delayed by a function that sleeps, so that a missing order is a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library, own_stream
from .libraries import LEGACY_DEFAULT, LIBRARIES, WRITABLE, Library, busy, delay, jax_device, settle

X = (2, 3, 64, 64)
STREAMS = ("default", "side")

each_way = pytest.mark.parametrize(
    ("name", "theirs", "ours"), [(name, a, b) for name in WRITABLE for a in STREAMS for b in STREAMS]
)


@cache
def values() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, w, and their convolution."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, X).astype(np.float32)
    w = rng.integers(-2, 3, (4, 3, 3, 3)).astype(np.float32)
    return x, w, ct.reference.conv(x, w)


def blank(array: np.ndarray) -> np.ndarray:
    return np.full_like(array, np.nan)


class Ours:
    """Our stream, its address, and operands that are made on it, so that they need no order."""

    def __init__(self, stream: str) -> None:
        self.stream = own_stream() if stream == "side" else LEGACY_DEFAULT
        self.handle = LEGACY_DEFAULT if stream != "side" else self.stream.__cuda_stream__()[1]
        self.x, self.w = (ct.asarray(array, stream=self.stream) for array in values()[:2])

    def conv(self, x: Any, **out: Any) -> ct.DeviceArray:
        return ct.conv(x, self.w, stream=self.stream, **out)

    def delayed_conv(self, out: Any) -> ct.DeviceArray:
        """Enqueue a delay and a convolution to ``out``."""
        return pending(self.handle, lambda: self.conv(self.x, out=out))


def pending(stream: int, call: Callable[[], ct.DeviceArray]) -> ct.DeviceArray:
    """Return the result of a call behind a delay; a busy computer may need more time for the call itself."""
    for seconds in (0.8, 6.0):
        settle()
        delay(stream, seconds)
        y = call()
        if busy(stream):
            return y
    raise AssertionError("the call has ended: this shows nothing")


def prepared(name: str, theirs: str, ours: str) -> tuple[Library, Ours]:
    return LIBRARIES[name](theirs == "side"), Ours(ours)


@each_way
def test_conv_waits_for_a_pending_producer(name: str, theirs: str, ours: str) -> None:
    one, mine = prepared(name, theirs, ours)
    x, _, expected = values()
    target, source = one.make(blank(x)), one.make(x)
    with one.current:
        mine.conv(one.seen(target))  # the first call takes longer
        one.write(target, source)
        one.write(target, one.make(blank(x)))
        settle()
        delay(one.handle)
        one.write(target, source)
        y = mine.conv(one.seen(target))
        assert busy(one.handle), "the producer has ended: this shows nothing"
    np.testing.assert_array_equal(y.numpy(), expected)


@each_way
def test_stream_of_the_library_waits_for_the_result_in_its_memory(name: str, theirs: str, ours: str) -> None:
    one, mine = prepared(name, theirs, ours)
    expected = values()[2]
    out = one.make(blank(expected))
    with one.current:
        given = one.seen(out)
        mine.conv(mine.x, out=given)
        one.write(out, one.make(blank(expected)))
        assert mine.delayed_conv(given).pointer == ct.asarray(given).pointer
        np.testing.assert_array_equal(one.read(out), expected)


@each_way
def test_consumer_of_a_result_waits_for_it(name: str, theirs: str, ours: str) -> None:
    one, mine = prepared(name, theirs, ours)
    expected = values()[2]
    out = ct.full(expected.shape, np.nan, stream=mine.stream)
    with one.current:
        one.take(mine.conv(mine.x, out=out))
        out.fill(np.nan, stream=mine.stream)
        taken = one.take(mine.delayed_conv(out))
        np.testing.assert_array_equal(one.read(taken), expected)


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("ours", STREAMS)
def test_memory_of_the_library_outlives_a_pending_call(name: str, ours: str) -> None:
    """The owner drops x while the call that reads it is delayed, and allocates memory again."""
    one, mine = prepared(name, "default", ours)
    x, _, expected = values()
    mine.conv(one.make(x))
    theirs = [one.make(x)]
    y = pending(mine.handle, lambda: mine.conv(theirs[0]))
    theirs.clear()
    again = [one.make(blank(x)) for _ in range(4)]
    np.testing.assert_array_equal(y.numpy(), expected)
    del again


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("theirs", STREAMS)
def test_memory_of_a_result_outlives_its_pending_use(name: str, theirs: str) -> None:
    """We drop y while the library reads it, and make new arrays; the consumer names its stream by DLPack."""
    one, mine = prepared(name, theirs, "side")
    expected = values()[2]
    kept = one.make(blank(expected))
    y = mine.conv(mine.x)
    settle()
    with one.current:
        taken = one.take(y)
        delay(one.handle)
        one.write(kept, taken)
        del taken, y
        again = [ct.full(expected.shape, np.nan, stream=mine.stream) for _ in range(8)]
        assert busy(one.handle), "their work has ended: this shows nothing"
        np.testing.assert_array_equal(one.read(kept), expected)
    del again


@pytest.mark.parametrize("size", [64, 2048])
def test_memory_is_not_reused_before_its_use_on_another_stream_has_ended(size: int) -> None:
    """Cached blocks, and memory of the pool."""
    side, w, x = own_stream(), ct.full((1, 1, 1, 1), 3.0), ct.full((1, 1, size, size), 2.0)
    out = ct.conv(x, w, stream=side).fill(np.nan, stream=side)
    settle()
    delay(side.__cuda_stream__()[1])
    ct.conv(x, w, out=out, stream=side)
    del x
    again = ct.full(out.shape, np.nan)  # the same address may be returned, but not too early
    assert (out.numpy() == 6).all()
    del again


# --- jax, which chooses its streams itself -----------------------------------------------------------------


@cache
def after_much_work() -> Any:
    """Return a function that returns an image, after work that takes some hundred milliseconds."""
    jax = library("jax")
    identity = jax.device_put(np.eye(4096, dtype=np.float32), jax_device())

    def slowly(identity: Any, image: Any) -> Any:
        product = jax.lax.fori_loop(0, 300, lambda _, a: a @ identity, identity)
        return image * product[0, 0]

    compiled = jax.jit(slowly)
    return lambda image: compiled(identity, image)


@pytest.mark.parametrize("ours", STREAMS)
def test_conv_waits_for_jax(ours: str) -> None:
    jax, mine, produce = LIBRARIES["jax"](False), Ours(ours), after_much_work()
    x, _, expected = values()
    stale = produce(jax.make(x + 1))  # compiles, and leaves other values in memory
    mine.conv(stale)
    image = jax.make(x)
    del stale
    produced = produce(image)
    running = not produced.is_ready()
    np.testing.assert_array_equal(mine.conv(produced).numpy(), expected)
    assert ct.asarray(produced).pointer == produced.unsafe_buffer_pointer()
    assert running, "the producer has ended: this shows nothing"


@pytest.mark.parametrize("ours", STREAMS)
def test_jax_waits_for_a_result(ours: str) -> None:
    jax, mine = library("jax"), Ours(ours)
    expected = values()[2]
    out = ct.full(expected.shape, np.nan, stream=mine.stream)
    double = jax.jit(lambda array: 2 * array)
    double(jax.dlpack.from_dlpack(mine.conv(mine.x, out=out))).block_until_ready()
    out.fill(np.nan, stream=mine.stream)
    taken = jax.dlpack.from_dlpack(mine.delayed_conv(out))
    np.testing.assert_array_equal(np.asarray(double(taken)), 2 * expected)
