"""Promises of the documentation: a sentence, its page, and a function that draws a case of it.

``promise`` registers such a function. It gets a :class:`Draw`, calls public functions, computes the same with
NumPy as the sentence says, and raises :class:`BrokenError` if they differ. A page is a file, or a public name
such as ``ct.reduce``, whose docstring has the sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype

from .judge import TINY, UNIT
from .operands import rounded
from .recipes import FLOATS, HALF, Source

__all__ = ["FLOATS", "HALF", "PROMISES", "BrokenError", "Draw", "Promise", "host", "promise", "stands"]

ROOT = Path(__file__).parents[2]


class BrokenError(AssertionError):
    """A promise that does not hold; the message has the case."""


class Promise(NamedTuple):
    """A sentence of the documentation and its check; ``gpu``: the fakes cannot keep it."""

    page: str
    quote: str
    check: Callable[[Draw], None]
    gpu: bool

    @property
    def name(self) -> str:
        """The name of the function that checks it."""
        return f"{self.page}: {self.check.__name__}"


PROMISES: list[Promise] = []


def promise(page: str, quote: str, *, gpu: bool = False) -> Callable[[Any], Any]:
    """Register the function below as the check of a sentence."""

    def register(check: Callable[[Draw], None]) -> Callable[[Draw], None]:
        PROMISES.append(Promise(page, quote, check, gpu))
        return check

    return register


def stands(one: Promise) -> bool:
    """Return whether the sentence of a promise is on its page, with any line breaks."""
    if one.page.startswith("ct."):
        found: Any = ct
        for name in one.page.split(".")[1:]:
            found = getattr(found, name)
        text = inspect.getdoc(found) or ""
    else:
        text = (ROOT / one.page).read_text(encoding="utf-8")
    return " ".join(one.quote.split()) in " ".join(text.split())


def host(array: Any) -> np.ndarray:
    """Return an array of a device in float64, or its integers."""
    values = ct.asarray(array).numpy()
    return values if values.dtype.kind in "iub" else values.astype(np.float64)


class Draw(Source):
    """A random source of cases: shapes, numbers, arrays in any layout, and comparisons."""

    def __init__(self, seed: object, kind: str = "gpu") -> None:
        super().__init__(seed)
        self.rng = np.random.default_rng(self.randrange(2**32))
        self.kind = kind

    def dtype(self, *names: str) -> str:
        """One of the names; by default a floating-point dtype."""
        return self.choice(names or FLOATS)

    def sizes(self, rank: int, longest: int = 6, least: int = 1) -> tuple[int, ...]:
        """A shape of this rank."""
        return tuple(self.randint(least, longest) for _ in range(rank))

    def values(self, shape: tuple[int, ...], dtype: str, kind: str = "normal") -> np.ndarray:
        """Numbers that the dtype has, in float64: normal ones, positive ones, or whole ones."""
        drawn = {
            "normal": self.rng.standard_normal,
            "positive": lambda size: self.rng.uniform(0.5, 2, size),
            "whole": lambda size: self.rng.integers(-4, 5, size).astype(np.float64),
        }[kind](shape)
        return rounded(np.asarray(drawn), dtype)

    def array(self, values: Any, dtype: str, plain: bool = False) -> Any:
        """The values on the device; half of the arrays have gaps, another order, or a misaligned start."""
        given = np.asarray(values, np.float64)
        with np.errstate(all="ignore"):
            given = given.astype(as_dtype(dtype).numpy)
        kind = "plain" if plain or not given.ndim or not given.size else self.choice(LAYOUTS)
        if kind == "gaps":
            wide = np.zeros((*given.shape[:-1], 2 * given.shape[-1]), given.dtype)
            wide[..., ::2] = given
            return ct.asarray(wide)[..., ::2]
        if kind == "turned":
            order = tuple(self.sample(range(given.ndim), given.ndim))
            back = tuple(int(axis) for axis in np.argsort(order))
            return ct.asarray(np.ascontiguousarray(given.transpose(order))).transpose(*back)
        if kind == "misaligned":
            flat = np.concatenate([np.zeros(1, given.dtype), given.reshape(-1)])
            return ct.asarray(flat)[1:].reshape(given.shape)
        return ct.asarray(given)

    def near(
        self, got: Any, want: Any, *, dtype: str, terms: Any = None, factor: float = 64, unit: float = 0.0
    ) -> None:
        """Compare with a bound: ``factor`` roundings of the terms that were added, and three of the result.

        NaN has to be NaN and infinity infinity; ``unit`` is the unit roundoff of the sums, by default that of
        float32, or of float64 for float64.
        """
        found, wanted = got if isinstance(got, np.ndarray) else host(got), np.asarray(want, np.float64)
        if found.shape != wanted.shape:
            raise BrokenError(f"shape {found.shape}, expected {wanted.shape}")
        unit = unit or UNIT["float64" if dtype == "float64" else "float32"]
        size = np.abs(wanted) if terms is None else np.maximum(np.abs(terms), np.abs(wanted))
        size = np.where(np.isfinite(size), size, 0)
        with np.errstate(all="ignore"):
            bound = factor * unit * size + 3 * UNIT.get(dtype, 0.0) * np.abs(wanted) + TINY.get(dtype, 0.0)
            same = ((np.abs(found - wanted) <= bound) & np.isfinite(wanted)) | (found == wanted)
        same |= np.isnan(found) & np.isnan(wanted)
        if not same.all():
            place = tuple(int(at) for at in np.argwhere(~same)[0])
            counts = f"{int((~same).sum())} of {same.size} elements differ"
            raise BrokenError(
                f"{dtype}: {counts}; at {place} got {found[place]!r}, expected {wanted[place]!r}"
            )

    def equal(self, got: Any, want: Any) -> None:
        """Compare exactly; NaN equals NaN."""
        found = got if isinstance(got, np.ndarray) else host(got)
        wanted = np.asarray(want)
        if found.shape != wanted.shape:
            raise BrokenError(f"shape {found.shape}, expected {wanted.shape}")
        same = (found == wanted) | ((found != found) & (wanted != wanted))
        if not np.all(same):
            place = tuple(int(at) for at in np.argwhere(~np.asarray(same))[0])
            raise BrokenError(f"at {place} got {found[place]!r}, expected {wanted[place]!r}")

    def same(self, got: Any, want: Any, dtype: str) -> None:
        """Compare with numbers that the dtype has: exactly, but numbers that it flushes to 0 may be 0."""
        found, wanted = host(got), np.asarray(want, np.float64)
        tiny = np.abs(wanted) <= TINY[dtype]
        self.equal(np.where(tiny, 0, found), np.where(tiny, 0, wanted))

    def holds(self, condition: Any, text: str) -> None:
        """Check a condition."""
        if not condition:
            raise BrokenError(text)

    def raises(self, errors: Any, call: Callable[[], object], text: str = "") -> BaseException:
        """Check that a call raises one of these errors, and return it."""
        try:
            call()
        except errors as error:
            return error
        raise BrokenError(f"{text or 'the call'} did not raise {errors}")


LAYOUTS = ("plain", "plain", "plain", "gaps", "turned", "misaligned")
