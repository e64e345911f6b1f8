"""Operands of a call of attention: numbers are copied to the device, packed sequences get offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import array_shapes
from ...array import DeviceArray
from ...array_creation import as_operand, asarray
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...shapes import attention_rules as rules
from ...shapes.attention import Band, attention_band, like_axes
from ...shapes.specs import TensorSpec
from .._operands import representable, stream_of
from .core import token_step, value_head

NO_LENGTHS = (0, 0)  # of sequences that are not packed

INT32_MAX = 2**31 - 1


Gathered = tuple[tuple[str, ...], tuple[Any, ...], tuple[int, int], Any]
"""Names and arrays of the operands of a call, upper bounds of packed lengths, the stream of the call."""


def gather(
    arrays: Mapping[str, Any],
    numbers: Mapping[str, Any],
    offsets: tuple[Any, Any],
    y: Any,
    causal: Any,
    window: Any,
    stream: Any,
) -> Gathered:
    """Return the operands of a call without optional ones that are None.

    ``arrays`` are on the device. ``numbers`` are ``lengths_q``, ``lengths_kv``, ``seed`` and ``offset``, on
    the device or in host memory. ``offsets`` are those of packed sequences, in host memory. ``y`` is the
    result of the forward pass or the array for it, whose tokens may have gaps; None for a new one.
    """
    given = {name: array for name, array in arrays.items() if array is not None or name not in rules.OPTIONAL}
    in_host = {name: value for name, value in numbers.items() if value is not None and is_in_host(value)}
    given |= {name: value for name, value in numbers.items() if value is not None and name not in in_host}
    packed = [one is not None for one in offsets]
    if not in_host and not any(packed):
        return _in_order(given, NO_LENGTHS, stream)
    where = stream_of(given["q"], "q", stream, list(given.values()))
    given = {name: as_operand(array, name, where) for name, array in given.items()}
    band = attention_band(causal, window)
    _check_lengths(given, in_host, band)
    longest = NO_LENGTHS
    if any(packed):
        if not all(packed):
            raise ValueError(f"offsets_q and offsets_kv belong together: got {offsets}")
        longest = _add_starts(given, in_host, offsets, y, band, where)
    for name, value in in_host.items():
        given[name] = uploaded(value, "int64" if name in ("seed", "offset") else "int32", where, name)
    return _in_order(given, longest, where)


# The order of the fields of the problem, which is that of a run's pointers.
_ORDER = ("dy", "q", "k", "v", "y", "stats", *rules.OPTIONAL)


def _in_order(given: dict[str, Any], longest: tuple[int, int], stream: Any) -> Gathered:
    names = tuple(name for name in _ORDER if name in given)
    return names, tuple(given[name] for name in names), longest, stream


def is_in_host(value: Any) -> bool:
    return isinstance(value, int | float | str | list | tuple) or type(value).__module__ == "numpy"


def uploaded(values: Any, dtype: str, where: Stream, name: str = "offsets") -> DeviceArray:
    """Return a copy on the device of whole numbers in host memory."""
    import numpy as np

    row = DTYPES[dtype]
    if np.size(values) and np.asarray(values).dtype.kind not in "biuO":  # O of integers that do not fit
        raise TypeError(f"{name} must have whole numbers: got {values!r}")
    try:
        host = np.atleast_1d(np.asarray(values, row.numpy))
    except OverflowError:
        raise ValueError(f"{name} is out of range: got {values}, expected {dtype}") from None
    return asarray(host) if array_shapes.active() else DeviceArray.from_host(host, row, "nchw", where)


def _check_lengths(given: Mapping[str, DeviceArray], in_host: dict[str, Any], band: Band) -> None:
    """Check lengths in host memory, and end them before queries that a window leaves no keys."""
    # Lengths on the device cannot be read without waiting.
    q, v = given["q"].shape, given["v"].shape
    if len(q) != 4 or len(v) != 4:
        return  # the problem reports it
    keys = v[2] * (given["page_table"].shape[-1] if "page_table" in given else 1)
    longest = {"lengths_q": q[2], "lengths_kv": keys}
    known = [name for name in longest if name in in_host]
    checked = {name: rules.sequence_lengths(in_host[name], longest[name], name) for name in known}
    in_host |= checked
    for name, numbers in checked.items():
        if len(numbers) != q[0]:
            raise ValueError(f"{name} has the wrong shape: got ({len(numbers)},), expected ({q[0]},)")
    if checked and not any(name in given for name in longest):  # else some are on the device
        whole = {name: (most,) * q[0] for name, most in longest.items()} | checked
        rules.check_band_of_lengths(band, whole["lengths_q"], whole["lengths_kv"])
        shorter = rules.queries_with_keys(band, whole["lengths_q"], whole["lengths_kv"])
        if shorter != list(whole["lengths_q"]):
            in_host["lengths_q"] = shorter


def _add_starts(
    given: dict[str, Any],
    in_host: dict[str, Any],
    offsets: tuple[Any, Any],
    y: Any,
    band: Band,
    where: Stream,
) -> tuple[int, int]:
    """Add the offsets of each packed tensor in elements, and the lengths; return the longest lengths."""
    import numpy as np

    q, k, v = (representable(given[name].spec) for name in "qkv")
    for name, spec in (("q", q), ("k", k), ("v", v)):
        if len(spec.shape) != 3:
            raise ValueError(
                f"{name} has the wrong number of axes: got shape {spec.shape}, expected (tokens, H, D) with "
                "offsets_q and offsets_kv"
            )
    starts_q = np.array(rules.sequence_offsets(offsets[0], q.shape[0], "offsets_q"), np.int64)
    starts_kv = np.array(rules.sequence_offsets(offsets[1], k.shape[0], "offsets_kv"), np.int64)
    if len(starts_q) != len(starts_kv):
        raise ValueError(
            f"offsets_q and offsets_kv differ in length: got {len(starts_q)} and {len(starts_kv)} offsets"
        )
    starts_of = {"lengths_q": starts_q.tolist(), "lengths_kv": starts_kv.tolist()}
    lengths: dict[str, Any] = {name: np.diff(starts).tolist() for name, starts in starts_of.items()}
    for name, starts in starts_of.items():
        if name in in_host:
            lengths[name] = rules.packed_lengths(in_host[name], starts, name)
        if name not in given:
            in_host[name] = lengths[name]
    if not any(name in given for name in lengths):
        rules.check_band_of_lengths(band, lengths["lengths_q"], lengths["lengths_kv"])
    result = like_axes((*q.shape[:2], v.shape[2]), q)
    if y is not None and len((found := as_operand(y, "y", where).spec).shape) == 3:
        result = representable(found)
    stats = TensorSpec.packed(q.shape[:2], "float32")
    tensors = {"q": (starts_q, q), "k": (starts_kv, k), "v": (starts_kv, v), "y": (starts_q, result)}
    tensors["stats"] = (starts_q, stats)
    columns = {name: spec.shape[-1] for name, (_, spec) in tensors.items()}
    wide_values = value_head(q.shape[2], v.shape[2], gradient="dy" in given, packed=True)
    columns |= {"v": wide_values, "y": wide_values}
    steps = {
        name: (starts, token_step(name, spec, columns[name])) for name, (starts, spec) in tensors.items()
    }
    arrays: dict[tuple[int, int], DeviceArray] = {}
    wide = max(int(starts[-1]) * step for starts, step in steps.values()) > INT32_MAX
    for name, (starts, step) in steps.items():
        if (key := (id(starts), step)) not in arrays:
            arrays[key] = uploaded(starts * step, "int64" if wide else "int32", where)
        given[f"starts_{name}"] = arrays[key]
    return rules.longest_sequence(lengths["lengths_q"]), rules.longest_sequence(lengths["lengths_kv"])
