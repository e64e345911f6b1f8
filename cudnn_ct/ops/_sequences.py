"""Batches of sequences: their lengths in device memory, and plans for part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..array import DeviceArray
from ..context import Context
from ..cuda import recording
from ..cuda import stream as streams
from ..cuda.stream import Stream
from ..dtypes import DTYPES
from ..errors import NotInitializedError
from ..plans.axes import sliced
from ..plans.base import Plan
from ..shapes.specs import TensorSpec


class DeviceNumbers:
    """Numbers on the device, owned by the default stream because they outlive the other streams."""

    __slots__ = ("_array", "_is_written", "_name")

    def __init__(self, device: int, values: Sequence[float], name: str, dtype: str = "int32") -> None:
        import numpy as np

        home, row = streams.default_stream(device), DTYPES[dtype]
        self._array = DeviceArray.from_host(np.array(values, row.numpy), row, "nchw", home)
        self._is_written = False  # as far as streams other than the default one know
        self._name = name

    def on(self, ctx: Context, owner: object = None) -> DeviceArray:
        """Return the array for work on the stream of a context; a captured graph keeps it, and ``owner``."""
        array, stream = self._array, ctx.call_stream
        if stream is not array.home:
            capturing = ctx.capturing
            if not self._is_written:  # once, because the numbers do not change
                if capturing and recording.current() is None:
                    raise not_on_stream(self._name)
                streams.wait(streams.default_stream(array.device))
                self._is_written = True
            if capturing:
                for kept in (owner or array, array):
                    ctx.pin(kept)
        array.writer = stream  # nothing has to wait
        return array

    def keep_until_done(self, stream: Stream) -> None:
        """Keep the memory until the work that is enqueued on a stream is done."""
        if stream is not self._array.home:
            self._array.record_use(stream)


def not_on_stream(name: str) -> NotInitializedError:
    """Return the error for numbers that a capture would have to copy to the device."""
    return NotInitializedError(
        f"{name} were not seen before on this stream, and a capture cannot copy them to the device; "
        "make the same call once on this stream before the capture"
    )


def plan_for_sequences(sequences: Sequence[int], make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """Return a plan for part of a batch, axis 1 or the only one; ``make`` plans adjacent sequences."""
    pieces = []
    for first, count in _runs(sequences):
        parts, offsets = [], []
        for spec in specs:
            axis = min(1, len(spec.shape) - 1)
            parts.append(spec._replace(shape=(*spec.shape[:axis], count, *spec.shape[axis + 1 :])))
            offsets.append(first * spec.strides[axis] * DTYPES[spec.dtype].itemsize)
        pieces.append((make(*parts), tuple(offsets)))
    return pieces[0][0] if len(pieces) == 1 and not any(pieces[0][1]) else sliced(pieces)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
