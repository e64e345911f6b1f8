"""Recipes of calls and cases of answers: operands and arguments, and the draws that they share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log2
from typing import Any, NamedTuple

import numpy as np

from .answer import Compute
from .offsets import OFFSETS

Case = tuple[dict[str, Any], dict[str, Any]]  # operands and arguments of an answer

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALF = ("float16", "bfloat16")
FLOAT8 = ("float8_e4m3", "float8_e5m2")


class Derived(NamedTuple):
    """An operand that is the result of another operation on operands of the call, rounded to its dtype."""

    operation: str
    result: str
    arguments: dict[str, Any]


class Recipe(NamedTuple):
    """An operation with operands and arguments, before memory, streams and factors are drawn.

    Attributes
    ----------
    operands : dict from names to (shape, dtype, values)
    arguments : dict
        Keywords, and positional arguments that are not arrays.
    out : (shape, dtype) or None
        The first result, if ``out=`` may take it.
    more : dict from names to (shape, dtype)
        All results after the first that ``out=`` may take, in order.
    derived : dict from names of operands to :class:`Derived`
    alias : tuple of str
        Operands that ``out`` may be.
    scaled : bool
        Whether the call takes alpha and beta.
    written : tuple of str
        Operands that the call changes.
    plan : str
        The function that prepares a plan for the call, if there is one.
    order : tuple of int
        An order of axes in memory that all arrays of this rank have in every second call.
    rejected : bool
        Whether the documentation says that the call raises NotSupportedError, by any cuDNN and on any device.
    """

    operands: dict[str, tuple[tuple[int, ...], str, str]]
    arguments: dict[str, Any]
    out: tuple[tuple[int, ...], str] | None = None
    derived: dict[str, Derived] = {}  # noqa: RUF012 - never changed
    alias: tuple[str, ...] = ()
    scaled: bool = True
    written: tuple[str, ...] = ()
    plan: str = ""
    more: dict[str, tuple[tuple[int, ...], str]] = {}  # noqa: RUF012 - never changed
    order: tuple[int, ...] = ()
    rejected: bool = False


class Source(random.Random):
    """A random source with the draws that recipes share."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def shape(self, least: int, most: int, longest: int = 6) -> tuple[int, ...]:
        return tuple(self.randint(1, longest) for _ in range(self.randint(least, most)))

    def images(self, longest: int = 9) -> tuple[int, ...]:
        """A shape (N, C, *spatial); sometimes with channels that tensor cores and vector loads like."""
        channels = self.choice((1, 2, 3, 4, 5, 8, 16, 32))
        axes = self.choice((1, 2, 2, 2, 3))
        spatial = tuple(self.randint(1, longest if axes < 3 else 5) for _ in range(axes))
        if self.chance(0.1):
            spatial = (1,) * axes
        return (0 if self.chance(0.02) else self.randint(1, 4), channels, *spatial)

    def per_axis(self, axes: int, low: int, high: int) -> Any:
        """An int, or a tuple with one for each axis."""
        if self.chance(0.5):
            return self.randint(low, high)
        return tuple(self.randint(low, high) for _ in range(axes))


def centre(source: Source) -> str:
    """The values of the x of a normalisation: in half of the calls, with a mean far from 0."""
    return source.choice(("normal", *OFFSETS)) if source.chance(0.6) else "normal"


def gradient_of(source: Source, name: str, drawn: Recipe, epsilons: Sequence[float] = ()) -> Recipe:
    """The gradient of a normalisation, with or without its statistics, perhaps of another epsilon."""
    x, scale = drawn.operands["x"], drawn.operands["scale"]
    operands, derived = {"x": x, "dy": (*x[:2], "normal"), "scale": scale}, {}
    if source.chance(0.6):
        given = drawn.arguments | ({"epsilon": source.choice(epsilons)} if epsilons else {})
        for statistic, (shape, dtype) in drawn.more.items():
            operands[statistic] = (shape, dtype, "normal")
            derived[statistic] = Derived(name, statistic, given)
    more = dict.fromkeys(("dscale", "dbias"), scale[:2])
    return drawn._replace(operands=operands, derived=derived, more=more)


def length(source: Source, low: int, high: int) -> int:
    """A length between two, each power of 2 as likely as the next; half of them divisible by 8."""
    high = max(low, high)
    n = round(2 ** source.uniform(log2(low), log2(high)))
    return min(max(n // 8 * 8 if source.chance(0.5) else n, low), high)


def long_image(source: Source, most: int) -> tuple[int, ...]:
    channels = min(source.choice((1, 3, 8, 16, 64, 256, 1000)), max(1, most // 4))
    side = source.choice((1, 2, 7, 14, 28, 56, 112, 333))
    side = min(side, max(1, int((most // channels) ** 0.5)))
    return (
        max(1, min(source.choice((1, 4, 32, 128)), most // (channels * side * side))),
        channels,
        side,
        side,
    )


def pick(rng: np.random.Generator, *values: Any) -> Any:
    """One of the values."""
    return values[rng.integers(len(values))]


def gradient_case(
    rng: np.random.Generator, forward: Compute, operands: dict[str, Any], arguments: dict[str, Any]
) -> Case:
    """A case of the gradient of a normalisation, in every second one with the statistics of its result."""
    with np.errstate(all="ignore"):
        results = forward(operands, arguments)
    given = {"x": operands["x"], "dy": rng.normal(size=operands["x"].shape), "scale": operands["scale"]}
    if pick(rng, True, False):
        given.update({name: results[name] for name in ("mean", "invstd")})
    return given, arguments
