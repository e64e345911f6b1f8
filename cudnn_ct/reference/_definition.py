"""Definitions of operations as functions of their arguments by name; their signatures are generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .._hints import UNSET, corrected
from ..shapes.checks import result_slots
from . import _cast
from ._cast import Array, Float64, R, Result

P = ParamSpec("P")
T = TypeVar("T")


class Arguments(SimpleNamespace):
    """The arguments of a call by name, and the results that they determine."""

    def required(self, *names: str) -> dict[str, Array]:
        """Return arguments as arrays by name; raise TypeError if one is None."""
        return _cast.required(**{name: getattr(self, name) for name in names})

    def present(self, *names: str) -> dict[str, Array]:
        """Return the arguments that are not None as arrays by name."""
        return _cast.present(**{name: getattr(self, name) for name in names})

    def operands(self, operation: str, *names: str) -> tuple[np.dtype[Any], list[Float64]]:
        """Return the dtype that these arguments must share, and copies of them in float64."""
        return _cast.operands(operation, **{name: getattr(self, name) for name in names})

    def deliver(self, values: Float64, dtype: np.dtype[Any], out: Any = UNSET) -> Array:
        """Return a result, scaled, added and rounded once, in ``out`` if it is given."""
        alpha, beta = getattr(self, "alpha", 1), getattr(self, "beta", 0)
        return _cast.deliver(values, dtype, alpha, beta, self.out if out is UNSET else out)

    def deliver_each(self, kind: type[R], results: Sequence[Result], absent: str = "", count: int = 1) -> R:
        """Return several results as a named tuple, the first one scaled.

        ``absent`` and ``count`` are those of :func:`result_slots`.
        """
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        slots = result_slots(self.out, names, absent=absent, count=count)
        rows = list(zip(names, results, slots, strict=False))
        for name, (values, dtype), given in rows:
            _cast.check_out(given, values.shape, dtype, name)
        _, first, given = rows[0]
        further = [_cast.deliver(*result, 1, 0, out) for _, result, out in rows[1:]]
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
