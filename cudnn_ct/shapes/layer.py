"""The problem of a layer, and the description of any problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from .specs import TensorSpec

P = TypeVar("P")
C = TypeVar("C", bound=type)


class LayerProblem(NamedTuple, Generic[P]):
    """A layer of x, or its gradient if ``dx`` is set; tensors that it does not use are None."""

    x: TensorSpec | None
    y: TensorSpec | None
    dy: TensorSpec | None
    dx: TensorSpec | None
    name: str
    params: P

    @classmethod
    def of(cls, name: str, params: P, specs: dict[str, TensorSpec], result: TensorSpec) -> LayerProblem[P]:
        """Return the problem of a layer, or of its gradient if the operands ``specs`` include dy."""
        x, y, dy = (specs.get(operand) for operand in ("x", "y", "dy"))
        return cls(x, y, dy, result, name, params) if dy else cls(x, result, None, None, name, params)

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return tuple(spec for spec in (self.dx or self.y,) if spec)

    def __str__(self) -> str:
        return describe(f"gradient of {self.name}" if self.dx else self.name, self, "name")


def describe(name: str, problem: Any, *omitted: str) -> str:
    """Describe a problem for messages: its tensors and parameters, without fields that are None or empty."""
    fields = {field: value for field, value in problem._asdict().items() if field not in omitted}
    given = [f"{field} {value}" for field, value in fields.items() if value not in (None, "")]
    return f"{name}: {', '.join(given)}"


def titled(name: str, *omitted: str) -> Callable[[C], C]:
    """Return a decorator that makes :func:`describe` the text of a problem."""

    def decorate(problem: C) -> C:
        problem.__str__ = lambda self: describe(name, self, *omitted)  # type: ignore[assignment,misc]
        return problem

    return decorate
