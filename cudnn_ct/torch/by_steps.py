"""Decorated generators and coroutines: each step runs in a block, and other code between steps does not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["by_steps"]


def by_steps(block: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function whose generator or coroutine enters a block for each step.

    ``block`` can be entered any number of times. The result is None for a function of another kind.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _Awaited(block, function(*args, **kwargs))

        return coroutine
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            return (yield from _steps(block, function(*args, **kwargs)))

        return generator
    return _async_generator(block, function) if inspect.isasyncgenfunction(function) else None


def _async_generator(block: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def generator(*args: Any, **kwargs: Any) -> Any:
        steps = function(*args, **kwargs)
        step, value = steps.asend, None
        while True:
            try:
                made = await _Awaited(block, step(value))
            except StopAsyncIteration:
                return
            try:
                value = yield made
                step = steps.asend
            except GeneratorExit:
                await _Awaited(block, steps.aclose())
                raise
            except BaseException as error:
                step, value = steps.athrow, error

    return generator


def _steps(block: AbstractContextManager[Any], steps: Any) -> Generator[Any, Any, Any]:
    """Run a generator, or the steps of a coroutine, in blocks."""
    step, value = steps.send, None
    while True:
        try:
            with block:
                made = step(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield made
            step = steps.send
        except GeneratorExit:
            with block:
                steps.close()
            raise
        except BaseException as error:
            step, value = steps.throw, error


class _Awaited:
    """A coroutine, or a step of an asynchronous generator, whose steps run in blocks."""

    def __init__(self, block: AbstractContextManager[Any], steps: Any) -> None:
        self._block, self._steps = block, steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return _steps(self._block, self._steps)
