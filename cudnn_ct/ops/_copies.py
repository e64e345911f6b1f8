"""Calls on packed copies of operands whose strides no descriptor holds: 0 or negative ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..context import Context
from ..plans.strided_copy import StridedCopy
from ..plans.workspace import align_after, nbytes_of
from ..shapes.specs import TensorSpec
from ._operands import unexpanded


def copies_of(specs: Sequence[TensorSpec], inputs: Sequence[TensorSpec]) -> OperandCopies | None:
    """Return the copies of operands that differ from the ``inputs`` of a problem; None if all are equal."""
    read = [
        spec if spec.shape == copy.shape else unexpanded(spec)
        for spec, copy in zip(specs, inputs, strict=True)
    ]
    pairs = enumerate(zip(read, inputs, strict=True))
    copies = {place: (spec, copy) for place, (spec, copy) in pairs if spec != copy}
    return OperandCopies(copies) if copies else None


class OperandCopies:
    """Copies of operands by their places, in one memory of the context.

    A call makes them without an allocation in a capture, and before the plan takes its workspace.
    """

    __slots__ = ("_nbytes", "_temporary", "places")

    def __init__(self, copies: Mapping[int, tuple[TensorSpec, TensorSpec]]) -> None:
        self.places, nbytes = {}, 0
        for place, (source, target) in copies.items():
            offset, nbytes = align_after(nbytes, nbytes_of(target))
            self.places[place] = StridedCopy(source, target), offset
        most = max(copy.workspace for copy, _ in self.places.values())
        self._temporary, self._nbytes = align_after(nbytes, most)

    def made(self, context: Context, pointers: Sequence[int]) -> tuple[list[int], object]:
        """Enqueue the copies; return the pointers with those of the copies, and their memory."""
        memory = context.operand_copies(self._nbytes)
        inner = list(pointers)
        for place, (copy, offset) in self.places.items():
            inner[place] = memory.handle + offset
            copy.copy(context, pointers[place], inner[place], memory.handle + self._temporary)
        return inner, memory

    def describe(self) -> str:
        count = len(self.places)
        return f"{count} {'operand' if count == 1 else 'operands'} copied: strides are 0 or negative"
