"""Arrays of torch, cupy, numba and jax whose producer still runs, and ours whose producer still does.

Each library on the default stream and on one of its own, and we on the default stream and on one of our own.
The work that comes first is held back by a function that sleeps, so that a missing order is a wrong result.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library
from .libraries import WRITABLE, Library, busy, delay, settle, stream_of_our_own

X = (2, 3, 64, 64)
STREAMS = ("default", "side")

each_way = pytest.mark.parametrize(
    ("name", "theirs", "ours"), [(name, a, b) for name in WRITABLE for a in STREAMS for b in STREAMS]
)


@cache
def values() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, w, and their convolution."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, X).astype(np.float32)
    w = rng.integers(-2, 3, (4, 3, 3, 3)).astype(np.float32)
    return x, w, ct.reference.conv(x, w)


def blank(array: np.ndarray) -> np.ndarray:
    return np.full_like(array, np.nan)


def prepared(name: str, theirs: str, ours: str) -> tuple[Library, Any, Any, Any]:
    """The library, its stream, our stream, and filters that were made on ours: no order hides in them."""
    one = WRITABLE[name]()
    mine = stream_of_our_own() if ours == "side" else None
    _, w, _ = values()
    return one, one.side() if theirs == "side" else None, mine, ct.asarray(w, stream=mine)


def address(mine: Any) -> int:
    return 1 if mine is None else mine.__cuda_stream__()[1]


@each_way
def test_conv_waits_for_a_producer_that_still_runs(name: str, theirs: str, ours: str) -> None:
    one, stream, mine, w = prepared(name, theirs, ours)
    x, _, expected = values()
    target, source = one.make(blank(x)), one.make(x)
    with one.use(stream):
        ct.conv(one.seen_on(target, stream), w, stream=mine)  # once before: what is made once takes its time
        one.write(target, source, stream)
        one.write(target, one.make(blank(x)), stream)
        settle()
        delay(one.handle(stream))
        one.write(target, source, stream)
        y = ct.conv(one.seen_on(target, stream), w, stream=mine)
        assert busy(one.handle(stream)), "the producer was over before: this shows nothing"
    np.testing.assert_array_equal(y.numpy(), expected)


@each_way
def test_stream_of_the_library_waits_for_the_result_in_its_memory(name: str, theirs: str, ours: str) -> None:
    one, stream, mine, w = prepared(name, theirs, ours)
    x, _, expected = values()
    source, out = ct.asarray(x, stream=mine), one.make(blank(expected))
    with one.use(stream):
        given = one.seen_on(out, stream)
        ct.conv(source, w, out=given, stream=mine)
        one.write(out, one.make(blank(expected)), stream)
        settle()
        delay(address(mine))
        assert ct.conv(source, w, out=given, stream=mine).pointer == ct.asarray(given).pointer
        assert busy(address(mine)), "the call was over before: this shows nothing"
        np.testing.assert_array_equal(one.read(given, stream), expected)


@each_way
def test_consumer_of_a_result_waits_for_it(name: str, theirs: str, ours: str) -> None:
    one, stream, mine, w = prepared(name, theirs, ours)
    x, _, expected = values()
    source, out = ct.asarray(x, stream=mine), ct.full(expected.shape, np.nan, stream=mine)
    with one.use(stream):
        one.take(ct.conv(source, w, out=out, stream=mine))
        out.fill(np.nan, stream=mine)
        settle()
        delay(address(mine))
        y = ct.conv(source, w, out=out, stream=mine)
        assert busy(address(mine)), "the call was over before: this shows nothing"
        taken = one.take(y)
        assert one.pointer(taken) == y.pointer
        np.testing.assert_array_equal(one.read(taken, stream), expected)


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("ours", STREAMS)
def test_memory_of_the_library_outlives_a_pending_call(name: str, ours: str) -> None:
    """The owner lets go of x while the call that reads it is held back, and asks for memory again."""
    one, _, mine, w = prepared(name, "default", ours)
    x, _, expected = values()
    ct.conv(one.make(x), w, stream=mine)
    theirs = one.make(x)
    settle()
    delay(address(mine))
    y = ct.conv(theirs, w, stream=mine)
    assert busy(address(mine)), "the call was over before: this shows nothing"
    del theirs
    again = [one.make(blank(x)) for _ in range(4)]
    np.testing.assert_array_equal(y.numpy(), expected)
    del again


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("theirs", STREAMS)
def test_memory_of_a_result_outlives_its_pending_use(name: str, theirs: str) -> None:
    """We let go of y while they still read it, and make new arrays; who takes y by DLPack names a stream."""
    one, stream, mine, w = prepared(name, theirs, "side")
    x, _, expected = values()
    kept = one.make(blank(expected))
    source = ct.asarray(x, stream=mine)
    y = ct.conv(source, w, stream=mine)
    settle()
    with one.use(stream):
        taken = one.take(y)
        delay(one.handle(stream))
        one.write(kept, taken, stream)
        del taken, y
        again = [ct.full(expected.shape, np.nan, stream=mine) for _ in range(8)]
        assert busy(one.handle(stream)), "their work was over before: this shows nothing"
        np.testing.assert_array_equal(one.read(kept, stream), expected)
    del again


# --- jax, whose streams are its own affair -----------------------------------------------------------------


@cache
def after_much_work() -> Any:
    """A function that gives an image back, after work that takes some hundred milliseconds."""
    jax = library("jax")
    identity = jax.device_put(np.eye(4096, dtype=np.float32), jax.devices("gpu")[0])

    def slowly(identity: Any, image: Any) -> Any:
        product = jax.lax.fori_loop(0, 300, lambda _, a: a @ identity, identity)
        return image * product[0, 0]

    compiled = jax.jit(slowly)
    return lambda image: compiled(identity, image)


@pytest.mark.parametrize("ours", STREAMS)
def test_conv_waits_for_jax(ours: str) -> None:
    jax = library("jax")
    mine = stream_of_our_own() if ours == "side" else None
    x, w, expected = values()
    gpu, filters, produce = jax.devices("gpu")[0], ct.asarray(w, stream=mine), after_much_work()
    stale = produce(jax.device_put(x + 1, gpu))  # compiles, and leaves other values in memory
    ct.conv(stale, filters, stream=mine)
    image = jax.device_put(x, gpu).block_until_ready()
    settle()
    del stale
    produced = produce(image)
    running = not produced.is_ready()
    y = ct.conv(produced, filters, stream=mine)
    np.testing.assert_array_equal(y.numpy(), expected)
    assert ct.asarray(produced).pointer == produced.unsafe_buffer_pointer()
    assert running, "the producer was over before: this shows nothing"


@pytest.mark.parametrize("ours", STREAMS)
def test_jax_waits_for_us(ours: str) -> None:
    jax = library("jax")
    mine = stream_of_our_own() if ours == "side" else None
    x, w, expected = values()
    source, filters = ct.asarray(x, stream=mine), ct.asarray(w, stream=mine)
    out = ct.full(expected.shape, np.nan, stream=mine)
    double = jax.jit(lambda array: 2 * array)
    double(jax.dlpack.from_dlpack(ct.conv(source, filters, out=out, stream=mine))).block_until_ready()
    out.fill(np.nan, stream=mine)
    settle()
    delay(address(mine))
    y = ct.conv(source, filters, out=out, stream=mine)
    assert busy(address(mine)), "the call was over before: this shows nothing"
    taken = jax.dlpack.from_dlpack(y)
    np.testing.assert_array_equal(np.asarray(double(taken)), 2 * expected)
    assert taken.unsafe_buffer_pointer() == y.pointer


def test_memory_of_a_result_outlives_its_use_in_jax() -> None:
    jax = library("jax")
    x, w, expected = values()
    mine, slowly = stream_of_our_own(), after_much_work()
    source, filters = ct.asarray(x, stream=mine), ct.asarray(w, stream=mine)
    slowly(jax.dlpack.from_dlpack(ct.conv(source, filters, stream=mine))).block_until_ready()
    for _ in range(5):  # on a busy machine jax may be done before our memory is used again
        y = ct.conv(source, filters, stream=mine)
        settle()
        taken = jax.dlpack.from_dlpack(y)
        kept = slowly(taken)
        del taken, y
        again = [ct.full(expected.shape, np.nan, stream=mine) for _ in range(8)]
        running = not kept.is_ready()
        np.testing.assert_array_equal(np.asarray(kept), expected)
        del again
        if running:
            return
    pytest.fail("jax was done before in each of five attempts: this shows nothing")
