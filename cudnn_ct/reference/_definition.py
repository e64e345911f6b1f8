"""Definitions of operations as functions: operands in float64, and results scaled and rounded once.

Their signatures are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._hints import UNSET, corrected
from ..dtypes import as_dtype
from ..shapes.checks import FLOATS, as_float, one_dtype, result_slots
from ..shapes.specs import TensorSpec

Array = NDArray[Any]
Float64 = NDArray[np.float64]
R = TypeVar("R", bound=tuple[Any, ...])
Result = tuple[Float64, np.dtype[Any]]
Outs = Array | tuple[Array | None, ...]


def operands(
    operation: str, allowed: tuple[str, ...] = FLOATS, /, **arrays: ArrayLike
) -> tuple[np.dtype[Any], list[Float64]]:
    """Return the dtype that all arrays must share, and copies of them in float64."""
    given = required(**arrays)
    dtypes = {name: array.dtype for name, array in given.items()}
    one_dtype(operation, allowed, **dtypes)
    return next(iter(dtypes.values())), [wide(array) for array in given.values()]


def required(**arrays: ArrayLike | None) -> dict[str, Array]:
    """Return the arrays by name; raise TypeError if one is None, which NumPy makes an array of an object."""
    for name, array in arrays.items():
        if array is None:
            raise TypeError(f"{name} is not an array: got NoneType")
    return present(**arrays)


def present(**arrays: ArrayLike | None) -> dict[str, Array]:
    """Return the arrays that are not None, by name; raise TypeError if one is text or has objects."""
    found = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    for name, array in found.items():
        if array.dtype.kind in "SUO":
            raise TypeError(f"{name} is not an array of numbers: got {arrays[name]!r}")
    return found


def packed_spec(array: Array) -> TensorSpec:
    """Return the spec of a contiguous tensor with the shape and dtype of an array."""
    return TensorSpec.packed(array.shape, as_dtype(array.dtype).name)


def specs_of(arrays: dict[str, Array]) -> dict[str, TensorSpec]:
    return {name: packed_spec(array) for name, array in arrays.items()}


def specs_of_outs(outs: Sequence[object]) -> tuple[TensorSpec | None, ...]:
    """Return the specs of given results, None for new ones; raise unless all are arrays to write."""
    return tuple(None if one is None else packed_spec(given_out(one)) for one in outs)


def wide(array: Array) -> Float64:
    """Return a copy in float64, which represents every value of the supported dtypes."""
    return array.astype(np.float64)


def summed_to(values: Float64, shape: tuple[int, ...]) -> Float64:
    """Return the sums over the axes along which a tensor of this shape was broadcast."""
    aligned = (1,) * (values.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, length in enumerate(aligned) if length == 1)
    return np.asarray(values.sum(axes, keepdims=True).reshape(shape))


# Infinities and NaN are valid data, and cuDNN gives no warnings either.
@np.errstate(all="ignore")
def deliver(values: Float64, dtype: np.dtype[Any], alpha: float, beta: float, out: Array | None) -> Array:
    """Return ``alpha * values + beta * out``, rounded once, in ``out`` if it is given."""
    alpha, beta = as_float(alpha, "alpha"), as_float(beta, "beta")
    if out is None and beta != 0:
        raise ValueError(f"beta={beta:g} needs out, the array that it multiplies")
    check_out(out, values.shape, dtype)
    values = np.asarray(alpha * values)
    if out is not None and beta != 0:  # as in cuDNN, a NaN in `out` must not leak through beta = 0
        values = np.asarray(values + beta * wide(out))
    result = round_once(values, dtype)
    if out is None:
        return result
    out[...] = result
    return out


@np.errstate(all="ignore")
def round_once(values: Float64, dtype: np.dtype[Any]) -> Array:
    """Convert float64 to ``dtype``, to the nearest, ties to even; integers saturate."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        inside = np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
        # The limit of int64 is 2**63 in float64, which is out of range.
        return np.asarray(np.where(values >= limits.max, dtype.type(limits.max), inside))
    if as_dtype(dtype).name != "bfloat16":
        return values.astype(dtype)
    # ml_dtypes goes through float32 and rounds twice: 1 + 2**-8 + 2**-40 becomes a tie, then 1. Rounding
    # to odd in between (truncate, and set the last bit if anything was lost) keeps the tie from arising.
    single = values.astype(np.float32)
    inexact = (single != values) & ~np.isnan(values)
    bits = single.view(np.uint32)
    bits -= inexact & (np.abs(single) > np.abs(values))
    bits |= inexact
    return single.astype(dtype)


def given_out(out: object) -> Array:
    """Return ``out``; raise unless it is an array that may be written."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, not {type(out).__name__}")
    return writable(out, "out")


def writable(array: Array, name: str) -> Array:
    """Return an array; raise if it is read-only."""
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return array


def check_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "result") -> None:
    """Raise unless ``out`` is None or an array for the result."""
    if out is None:
        return
    array = given_out(out)
    if array.shape != shape:
        raise ValueError(f"out has shape {array.shape}; the {name} has {shape}")
    if array.dtype != dtype:
        raise TypeError(f"out is {array.dtype}; the {name} is {dtype}")


P = ParamSpec("P")
T = TypeVar("T")


class Arguments(SimpleNamespace):
    """The arguments of a call by name, and the results that they determine."""

    def required(self, *names: str) -> dict[str, Array]:
        """Return arguments as arrays by name; raise TypeError if one is None."""
        return required(**{name: getattr(self, name) for name in names})

    def present(self, *names: str) -> dict[str, Array]:
        """Return the arguments that are not None as arrays by name."""
        return present(**{name: getattr(self, name) for name in names})

    def operands(self, operation: str, *names: str) -> tuple[np.dtype[Any], list[Float64]]:
        """Return the dtype that these arguments must share, and copies of them in float64."""
        return operands(operation, **{name: getattr(self, name) for name in names})

    def deliver(self, values: Float64, dtype: np.dtype[Any], out: Any = UNSET) -> Array:
        """Return a result, scaled, added and rounded once, in ``out`` if it is given."""
        alpha, beta = getattr(self, "alpha", 1), getattr(self, "beta", 0)
        return deliver(values, dtype, alpha, beta, self.out if out is UNSET else out)

    def deliver_each(self, kind: type[R], results: Sequence[Result], absent: str = "", count: int = 1) -> R:
        """Return several results as a named tuple, the first one scaled.

        ``absent`` and ``count`` are those of :func:`result_slots`.
        """
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        slots = result_slots(self.out, names, absent=absent, count=count)
        rows = list(zip(names, results, slots, strict=False))
        for name, (values, dtype), given in rows:
            check_out(given, values.shape, dtype, name)
        _, first, given = rows[0]
        further = [deliver(*result, 1, 0, out) for _, result, out in rows[1:]]
        return kind(self.deliver(*first, given), *further, *[None] * (count if absent else 0))


def defined(like: Callable[P, T]) -> Callable[[Callable[[Arguments], T]], Callable[P, T]]:
    """Return a decorator that gives a definition the signature of a function of `_signatures`.

    Wrong calls raise the errors of the operation.
    """
    known = signature(like)
    defaults = {
        one.name: UNSET if one.default is one.empty else one.default for one in known.parameters.values()
    }
    first = [one.name for one in known.parameters.values() if one.kind is not Parameter.KEYWORD_ONLY]

    def decorate(definition: Callable[[Arguments], T]) -> Callable[P, T]:
        @wraps(definition)
        def call(*arrays: P.args, **keywords: P.kwargs) -> T:
            given: dict[str, Any] = dict(zip(first, arrays, strict=False))
            for name in given.keys() & keywords:
                raise TypeError(f"{like.__name__}() got multiple values for argument {name!r}")
            unknown = {name: value for name, value in keywords.items() if name not in defaults}
            given = defaults | given | {name: keywords[name] for name in keywords.keys() - unknown}
            more = arrays[len(first) :]
            if more or unknown or any(value is UNSET for value in given.values()):
                return corrected(call, {"more": more, "unknown": unknown, **given})
            # Infinities and NaN are valid data, as are the means of empty batches; cuDNN gives no warnings.
            with np.errstate(all="ignore"):
                return definition(Arguments(**given))

        vars(call)["__signature__"] = known
        call.__annotations__ = like.__annotations__
        return call

    return decorate
