"""Blocks of ``enable()`` that end in another order or thread, and those of generators and coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import cudnn_ct.torch as ctt
from cudnn_ct.torch import blocks

OWN = F.softmax


@pytest.fixture(params=[False, True], ids=["mode", "rebind"])
def enable(request: pytest.FixtureRequest) -> Iterator[Callable[..., ctt.enable]]:
    """Make blocks of each kind; none may be left."""
    yield lambda *skip: ctt.enable(skip=skip, rebind=request.param)
    gc.collect()
    assert F.softmax is OWN
    assert not _get_current_function_mode_stack()
    assert not blocks.thread.blocks.open
    assert blocks.thread.blocks.innermost is None


def call() -> None:
    F.softmax(torch.ones(1, 2), 1)


def calls(block: ctt.enable) -> int:
    """Return the number of calls that a block has seen, all of tensors in host memory."""
    assert not block.report().served
    return sum(block.report().left.values())


def run_in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_blocks_may_end_in_any_order(enable: Any) -> None:
    first, second, third = (enable() for _ in range(3))
    for block in (first, second, third):
        block.__enter__()
    for block in (first, third, second):
        block.__exit__(None, None, None)
        call()
    assert [calls(block) for block in (first, second, third)] == [0, 1, 1]


def test_a_generator_that_is_dropped_ends_its_block_only(enable: Any) -> None:
    def suspended() -> Iterator[None]:
        with enable("softmax"):
            yield

    steps = suspended()
    next(steps)
    with enable() as block:
        del steps
        gc.collect()
        call()
    call()
    assert calls(block) == 1


class Counting(TorchFunctionMode):
    """A mode that counts calls."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("first", ["block", "mode"])
def test_other_modes_of_torch_stay_when_a_block_ends(first: str) -> None:
    block, mode = ctt.enable(), Counting()
    order: list[Any] = [block, mode] if first == "block" else [mode, block]
    for one in order:
        one.__enter__()
    order[0].__exit__(None, None, None)
    if first == "block":
        assert _get_current_function_mode_stack() == [mode]
    order[1].__exit__(None, None, None)
    assert not _get_current_function_mode_stack()


def test_a_block_that_is_left_in_another_thread_ends_with_an_error(enable: Any) -> None:
    outer, block = enable(), enable("softmax")
    found: list[str] = []

    def leave() -> None:
        with enable() as own:
            with pytest.raises(RuntimeError, match="was left in another thread") as error:
                block.__exit__(None, None, None)
            found.append(str(error.value))
            call()
        assert calls(own) == 1

    with outer:
        block.__enter__()
        run_in_thread(leave)
        call()
    assert found
    assert calls(outer) == 1


def test_a_mode_that_another_thread_has_ended_serves_no_call() -> None:
    block = ctt.enable()
    block.__enter__()

    def leave() -> None:
        with pytest.raises(RuntimeError, match="was left in another thread"):
            block.__exit__(None, None, None)

    run_in_thread(leave)
    call()
    assert not calls(block)
    with ctt.enable() as other:  # drops the mode
        call()
    assert calls(other) == 1
    assert not _get_current_function_mode_stack()


def test_a_thread_that_ends_ends_its_blocks(enable: Any) -> None:
    block = enable()
    run_in_thread(block.__enter__)
    gc.collect()
    assert F.softmax is OWN
    block.__enter__()
    call()
    block.__exit__(None, None, None)
    assert calls(block) == 1


def test_a_block_that_is_not_open_cannot_be_left(enable: Any) -> None:
    block = enable()
    with block:
        pass
    with pytest.raises(RuntimeError, match="the block of enable\\(\\) is not open"):
        block.__exit__(None, None, None)


def test_one_object_may_be_entered_by_several_threads(enable: Any) -> None:
    block, both, seen = enable(), threading.Barrier(2, timeout=20), []

    def run() -> None:
        with block:
            both.wait()
            call()
            both.wait()
        seen.append(F.softmax)

    thread = threading.Thread(target=run)
    thread.start()
    run()
    thread.join(20)
    assert len(seen) == 2
    assert calls(block) == 2


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
def test_a_block_ends_when_python_collects_its_generator_while_names_are_bound() -> None:
    def suspended() -> Iterator[None]:
        with ctt.enable(rebind=True):
            yield

    steps = suspended()
    next(steps)
    circle: list[Any] = [steps]
    circle.append(circle)
    del steps, circle

    def collect() -> None:
        with ctt.serving._replaced._lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert F.softmax is OWN


# --- decorated functions -----------------------------------------------------------------------------------


def test_each_step_of_a_generator_is_in_a_block(enable: Any) -> None:
    block = enable()

    @block
    def steps(count: int) -> Iterator[Any]:
        """Count."""
        try:
            for place in range(count):
                call()
                got = yield place
                assert got == place
        except KeyError:
            call()
            yield "handled"
        finally:
            call()
        return "end"

    made = steps(3)
    assert steps.__doc__ == "Count."
    assert next(made) == 0
    call()  # not in the block
    assert made.send(0) == 1
    assert made.throw(KeyError) == "handled"
    made.close()
    assert calls(block) == 4
    made = steps(1)
    next(made)
    with pytest.raises(StopIteration) as end:
        made.send(0)
    assert end.value.value == "end"
    assert calls(block) == 6


def test_tasks_of_decorated_coroutines_are_each_in_their_block(enable: Any) -> None:
    serving, skipping = enable(), enable("softmax")

    @serving
    async def one(turn: asyncio.Event, other: asyncio.Event) -> str:
        call()
        other.set()
        await turn.wait()
        call()
        return "one"

    @skipping
    async def two(turn: asyncio.Event, other: asyncio.Event) -> str:
        await turn.wait()
        call()
        other.set()
        await asyncio.sleep(0)
        call()
        return "two"

    async def outside(count: int) -> None:
        for _ in range(count):
            call()
            await asyncio.sleep(0)

    async def run() -> list[Any]:
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(one(first, second), two(second, first), outside(5))

    assert asyncio.run(run()) == ["one", "two", None]
    assert calls(serving) == 2
    assert calls(skipping) == 0


def test_a_decorated_coroutine_raises_and_is_cancelled_as_without(enable: Any) -> None:
    block = enable()

    @block
    async def wait(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            raise KeyError(seconds)
        finally:
            call()

    with pytest.raises(KeyError):
        asyncio.run(wait(0))

    async def cancelled() -> None:
        task = asyncio.create_task(wait(20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert calls(block) == 2


def test_each_step_of_an_asynchronous_generator_is_in_a_block(enable: Any) -> None:
    block = enable()

    @block
    async def steps() -> AsyncIterator[Any]:
        try:
            call()
            got = yield 1
            call()
            await asyncio.sleep(0)
            yield got
            yield 3
        except KeyError:
            call()
            yield "handled"
        finally:
            call()

    async def run() -> None:
        made: Any = steps()
        assert await anext(made) == 1
        call()
        assert await made.asend("sent") == "sent"
        assert await made.athrow(KeyError) == "handled"
        await made.aclose()
        assert [one async for one in steps()] == [1, None, 3]

    asyncio.run(run())
    assert calls(block) == 4 + 3
