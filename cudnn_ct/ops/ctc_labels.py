"""Labels and lengths of a CTC loss: checked, and copied to the device once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import BoundedDict, Context
from ..cuda import interop
from ..cuda import stream as streams
from ..dtypes import DTYPES
from ..errors import NotInitializedError, NotSupportedError
from ..shapes.ctc import (
    CTC_LABELS,
    CTC_MAX_LABELS,
    check_ctc_logits,
    check_ctc_of_host,
    check_ctc_operands,
    ctc_min_steps,
    ctc_room,
)

__all__ = ["LABEL_NAMES", "CTCInputs", "CTCTargets"]

MAX_COPIES = 64  # copies of labels and lengths that a thread keeps on the device

_COPIES = "labels and lengths of CTC losses"  # the key of these copies in a context
LABEL_NAMES = ("labels", "label_lengths", "input_lengths")
_Some = tuple[Any, ...]  # sequences of a batch, each with what there is to know of it


class CTCTargets(NamedTuple):
    """Labels, their lengths and the steps of each sequence, as a call takes them.

    ``arrays`` are on the device, ``host`` the same as C arrays. ``room`` is how many labels the descriptor is
    made for. Sequences that are ``impossible``, ``empty`` or ``unlabelled`` have others in their place, which
    cuDNN can compute; the last come with how many steps each has. So do the ``ends``, of sequences that have
    fewer steps than there are, but for the first two.
    """

    arrays: tuple[DeviceArray, ...]
    host: tuple[Any, ...]
    room: int
    impossible: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    unlabelled: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int], ...] = ()

    def known(self, normalization: str) -> tuple[_Some, _Some, _Some, _Some]:
        """Return the sequences that need steps of their own: those replaced, and ends to be kept."""
        ends = self.ends if normalization == "none" else ()
        return self.impossible, self.empty, self.unlabelled, ends


class CTCInputs:
    """Labels and lengths as the caller gave them; ``device`` has those that are on the device, else None."""

    def __init__(self, ctx: Context, shape: Sequence[int], values: tuple[Any, ...], blank: int) -> None:
        _, self.batch, alphabet = check_ctc_logits(shape, blank)
        if alphabet == 1:
            raise NotSupportedError(
                f"logits have shape {tuple(shape)}: a blank alone; cuDNN wants a label too"
            )
        if blank:
            raise NotSupportedError(
                f"blank is {blank}; cuDNN has the blank at 0 alone: exchange symbols {blank} and 0"
            )
        self.ctx, self.shape, self.values = ctx, shape, values
        self.device = [
            as_operand(value, name, ctx.stream) if _is_on_device(value) else None
            for name, value in zip(LABEL_NAMES, values, strict=True)
        ]

    def targets(self, normalization: str) -> CTCTargets:
        """Return labels and lengths as a call takes them; a capture cannot read those on the device."""
        on_device = any(array is not None for array in self.device)
        return self.unseen(normalization) if on_device and self.ctx.capturing else self.checked()

    def checked(self) -> CTCTargets:
        """Check all of them; those on the device are read back."""
        labels, counts, inputs = (
            value if array is None else array.numpy()
            for value, array in zip(self.values, self.device, strict=True)
        )
        rows, steps = check_ctc_operands(self.shape, labels, counts, inputs)
        impossible = [n for n, row in enumerate(rows) if steps[n] < ctc_min_steps(row)]
        empty = [n for n, row in enumerate(rows) if not row and not steps[n]]
        unlabelled = [(n, steps[n]) for n, row in enumerate(rows) if not row and steps[n]]
        # PyTorch saw cuDNN leave its memory where there are more labels than steps: one label in one step is
        # safe. One in all steps is for sequences without labels.
        shortened = {*impossible, *empty}
        ends = [(n, end) for n, end in enumerate(steps) if end < self.shape[0] and n not in shortened]
        known = shortened.union(n for n, _ in unlabelled)
        rows = tuple((1,) if n in known else row for n, row in enumerate(rows))
        steps = tuple(1 if n in shortened else end for n, end in enumerate(steps))
        lengths = tuple(map(len, rows))
        _check_most(lengths)
        values = (tuple(chain(*rows)) or (1,), lengths, steps)  # no memory is not to be pointed at
        arrays = [
            array if array is not None and not known and _is_as_cudnn_takes_it(array) else self._copied(value)
            for value, array in zip(values, self.device, strict=True)
        ]
        host = tuple((ctypes.c_int * len(value))(*value) for value in values)
        others = tuple(impossible), tuple(empty), tuple(unlabelled), tuple(ends)
        return CTCTargets(_as_operands(arrays), host, self._room(lengths), *others)

    def unseen(self, normalization: str) -> CTCTargets:
        """Check those on the host alone: the others cannot be read while a graph is captured."""
        there = [array is not None for array in self.device]
        rows, counts, steps = check_ctc_of_host(self.shape, self.values, there)
        if counts and 0 in counts:
            raise NotSupportedError(
                f"sequence {counts.index(0)} has no labels, which cuDNN gets wrong: to capture this call, "
                "pass labels and lengths that are all on the host"
            )
        if normalization == "none" and steps is None:
            raise NotSupportedError(
                "input_lengths on the device cannot be read while a graph is captured, and normalization="
                "'none' needs them to leave gradients past the ends at zero: pass input_lengths on the host"
            )
        _check_most(counts or ())
        self._check_enough(rows, counts, steps)
        ends = tuple((n, end) for n, end in enumerate(steps or ()) if end < self.shape[0])
        labels = None if rows is None else tuple(chain(*rows)) or (1,)  # as in `checked`
        arrays = []
        for name, value, array in zip(LABEL_NAMES, (labels, counts, steps), self.device, strict=True):
            if array is None:
                assert value is not None
                array = self._copied(value)
            elif not _is_as_cudnn_takes_it(array):
                raise TypeError(
                    f"{name} on the device is {array.spec}; a captured call takes int32, one after another"
                )
            if name != "labels" and array.shape != (self.batch,):
                raise ValueError(f"{name} has shape {array.shape}; the batch has {self.batch} sequences")
            if name == "labels" and array.size < sum(counts or ()):
                raise ValueError(
                    f"there are {array.size} labels; label_lengths {counts} add up to {sum(counts or ())}"
                )
            arrays.append(array)
        return CTCTargets(_as_operands(arrays), (None,) * 3, self._room(counts or ()), ends=ends)

    def _check_enough(
        self,
        rows: tuple[tuple[int, ...], ...] | None,
        counts: tuple[int, ...] | None,
        steps: tuple[int, ...] | None,
    ) -> None:
        """Raise where what is known says that a sequence has too few steps: cuDNN would leave its memory."""
        if counts is None:
            least = [1] * self.batch
        else:
            least = list(counts if rows is None else map(ctc_min_steps, rows))
        most = [self.shape[0]] * self.batch if steps is None else steps
        for n, (wanted, found) in enumerate(zip(least, most, strict=True)):
            if found < wanted:
                raise NotSupportedError(
                    f"sequence {n} has at most {found} steps, and needs {wanted} or more for its labels; "
                    "cuDNN would leave its memory: to capture this call, pass labels and lengths that are "
                    "all on the host"
                )

    def _room(self, counts: Sequence[int]) -> int:
        """The same for every call with lengths on the device, whatever they hold."""
        return ctc_room(counts) if self.device[1] is None else CTC_MAX_LABELS

    def _copied(self, values: tuple[int, ...]) -> DeviceArray:
        """The copy of some integers on the device, made when they were first seen."""
        kept = self.ctx.plans.setdefault(_COPIES, BoundedDict(MAX_COPIES))
        copy: _DeviceInts | None = kept.get(values)
        if copy is None:
            if self.ctx.capturing:
                raise _not_seen()
            copy = kept[values] = _DeviceInts(self.ctx.device, values)
        return copy.on(self.ctx)


class _DeviceInts:
    """Integers on the device. They outlive the streams that use them, so their home is the default stream."""

    __slots__ = ("_array", "_there")

    def __init__(self, device: int, values: tuple[int, ...]) -> None:
        import numpy as np

        home = streams.default_stream(device)
        self._array = DeviceArray.from_host(np.array(values, np.int32), DTYPES["int32"], "nchw", home)
        self._there = False  # for other streams than that

    def on(self, ctx: Context) -> DeviceArray:
        """The array, for work on the stream of a context; a captured graph keeps it."""
        array, stream = self._array, ctx.stream
        if stream != array.home:
            capturing = ctx.capturing
            if not self._there:  # once: they are not written again
                if capturing:
                    raise _not_seen()
                streams.synchronize(array.writer)
                self._there = True
            if capturing:
                ctx.pin(array)
        array.writer = stream  # so that nothing waits
        return array


def _not_seen() -> NotInitializedError:
    return NotInitializedError(
        "labels or lengths that were not seen before on this stream would be copied while a graph is "
        "captured: make the same call once on this stream before, or pass int32 arrays on the device"
    )


def _is_on_device(value: Any) -> bool:
    return isinstance(value, DeviceArray) or not interop.in_host_memory(value)


def _as_operands(arrays: Iterable[DeviceArray]) -> tuple[DeviceArray, ...]:
    """Return views with one spec for all sizes, so that batches of different labels share a prepared call."""
    return tuple(array.view_as(CTC_LABELS) for array in arrays)


def _is_as_cudnn_takes_it(array: DeviceArray) -> bool:
    return array.spec.dtype == "int32" and array.ndim == 1 and array.size > 0 and array.spec.dense


def _check_most(counts: Sequence[int]) -> None:
    for n, count in enumerate(counts):
        if count > CTC_MAX_LABELS:
            raise NotSupportedError(f"sequence {n} has {count} labels; cuDNN takes {CTC_MAX_LABELS}")
