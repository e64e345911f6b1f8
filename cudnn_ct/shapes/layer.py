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


def problem_class(title: str | Callable[[Any], str], results: str, *omitted: str) -> Callable[[C], C]:
    """Return a decorator of named tuples that adds ``results``, and :func:`describe` as their text.

    ``results`` are the names of fields in the order of a run; those that are None are left out. ``title`` may
    be a function of a problem; if it is empty, the class has a text of its own.
    """
    names = results.split()

    def written(self: Any) -> tuple[TensorSpec, ...]:
        return tuple([spec for name in names if (spec := getattr(self, name)) is not None])

    def text(self: Any) -> str:
        return describe(title if isinstance(title, str) else title(self), self, *omitted)

    def decorate(problem: C) -> C:
        changed: Any = problem
        changed.results = property(written)
        if title:
            changed.__str__ = text
        return problem

    return decorate


def results_of(problem: Any) -> tuple[TensorSpec, ...]:
    """Return the ``results`` of a problem, which type checkers do not see behind :func:`problem_class`."""
    results: tuple[TensorSpec, ...] = problem.results
    return results


def describe(name: str, problem: Any, *omitted: str) -> str:
    """Describe a problem for messages: its tensors and parameters, without fields that are None or empty."""
    fields = {field: value for field, value in problem._asdict().items() if field not in omitted}
    given = [f"{field} {value}" for field, value in fields.items() if value not in (None, "")]
    return f"{name}: {', '.join(given)}"
