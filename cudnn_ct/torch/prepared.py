"""Calls of operators that are prepared: all that does not depend on memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .. import context
from ..cuda import recording as recordings
from ..cuda import stream as streams
from ..cuda.foreign import library_of
from ..cuda.stream import Stream, in_use
from .known import KnownFunction
from .symbolic import Meta
from .workspace import LEARNED, SMALL, Needs

# Takes a third of the time of `torch.empty_strided`; torch's own compiler calls it. It may be missing.
_empty_on_current = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_current_on = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class WithoutMemoryError(ValueError):
    """An operand is a batch of tensors, sparse, zero without memory, or was wrapped by torch.func."""


class Call:
    """A call of an operator on tensors with known attributes.

    ``function`` is called with ``keywords`` besides the operands, whose names are ``operands``. ``results``
    describe what it writes. ``varies`` is whether its sums are in an undefined order although torch is asked
    for deterministic ones. ``known`` is unset for functions that do more than
    call operations. ``absent`` operands are not given.
    """

    __slots__ = (
        "_absent",
        "_empty",
        "_function",
        "_index",
        "_known",
        "_needs",
        "_operands",
        "_results",
        "device",
        "varies",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[str],
        results: Sequence[Meta],
        device: torch.device,
        *,
        varies: bool = False,
        known: bool = True,
        absent: int = 0,
    ) -> None:
        self._function = function
        self._operands = tuple(operands)
        self._results = tuple((tuple(one.shape), tuple(one.strides), one.dtype) for one in results)
        self.device, self._index = device, device.index or 0
        self.varies = varies
        self._absent = absent
        self._needs = Needs()
        self._known = KnownFunction(len(self._results)) if known else None
        self._empty = _allocation(device)

    def run(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """Return the results for operands with these attributes, None for one that is not given."""
        empty, results = self._empty, self._results
        if len(results) == 1:  # a comprehension takes as long as the allocation
            outs = [empty(*results[0])]
        else:
            outs = [empty(shape, strides, dtype) for shape, strides, dtype in results]
        if in_use.get() is not None or recordings.current() is not None:
            self._call(tensors, outs)
            return outs
        arrays = [*tensors, *outs]
        try:
            if self._absent:
                pointers = [0 if one is None else one.data_ptr() for one in arrays]
            else:
                pointers = [*map(_address, arrays)]
        except RuntimeError as error:
            raise WithoutMemoryError("an operand has no memory of its own") from error
        where, needs = current_stream(self._index), self._needs
        if self._known is not None and needs.runs == LEARNED:
            memory = empty((needs.nbytes,), (1,), torch.uint8) if needs.nbytes > SMALL else None
            lent = () if memory is None else (memory.data_ptr(), needs.nbytes)
            if self._known.replay(where, pointers, lent):
                return outs
            del memory  # torch gives its address to the workspace of the call, which can be recorded then
        if pointers.count(0) != self._absent:  # such a call is never recorded
            _check_memory(arrays, pointers)
        known = self._known if self._needs.are_small(where) else None
        if known is not None and known.run(where, arrays, pointers):
            return outs
        self._needs.run(partial(self._known_call, where, arrays, pointers), self.device)
        return outs

    def _known_call(self, where: Stream, arrays: Sequence[Any], pointers: Sequence[int]) -> None:
        """Run what the function does, or call it and learn that."""
        count = len(arrays) - len(self._results)
        if self._known is None:
            self._call(arrays[:count], arrays[count:])
        elif not self._known.run(where, arrays, pointers):
            call = partial(self._call, arrays[:count], arrays[count:])
            self._known.learn(context.of_device(where.device), call, pointers)

    def _call(self, tensors: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
        out = outs[0] if len(outs) == 1 else tuple(outs)
        self._function(**dict(zip(self._operands, tensors, strict=False)), out=out)


def _check_memory(arrays: Sequence[Any], pointers: Sequence[int]) -> None:
    """Raise if a tensor that has elements has no memory, as after ``storage.resize_(0)``."""
    for one, pointer in zip(arrays, pointers, strict=True):
        if one is not None and not pointer and one.numel():
            raise WithoutMemoryError(f"a tensor of shape {tuple(one.shape)} has no memory")


_TORCH = library_of(torch.Tensor)


_address = torch.Tensor.data_ptr


def current_stream(device: int) -> Stream:
    """Return torch's current stream of a device."""
    # As `foreign.PyTorch.current` does, which has to find torch first: most calls are on the default stream.
    if _current_on is not None and not _current_on(device):
        return streams.default_stream(device)
    assert _TORCH is not None
    return _TORCH.current(device)


def _allocation(device: torch.device) -> Callable[..., torch.Tensor]:
    """Return a function that allocates a tensor of a shape, strides and a dtype on a device."""
    if _empty_on_current is not None and device.type == "cuda" and torch.cuda.device_count() == 1:
        allocate: Callable[..., torch.Tensor] = _empty_on_current
        return allocate

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return empty
