"""The problem of a layer: its forward pass, or its gradient."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from .specs import TensorSpec

P = TypeVar("P")


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
        tensors = {"x": self.x, "y": self.y, "dy": self.dy, "dx": self.dx}
        given = ", ".join(f"{name} {spec}" for name, spec in tensors.items() if spec)
        return f"{'gradient of ' if self.dx else ''}{self.name}: {given}, {self.params}"
