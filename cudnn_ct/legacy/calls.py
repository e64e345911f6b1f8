"""Plans of the legacy calls of the usual form, which most layers have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..context import Context
from ..descriptors import TensorDescriptor
from ..dtypes import DTYPES
from ..problem import TensorSpec
from .native import scalar_type

__all__ = ["CallPlan"]


class CallPlan:
    """f(handle, *head, alpha, descriptor and pointer of each input, beta, those of the result).

    ``inputs`` are, in the order of the C function, places among the pointers of a run and specs; the result
    is the last pointer. ``factor`` multiplies every alpha.
    """

    __slots__ = ("_factor", "_function", "_head", "_inputs", "_result", "_scalar", "workspace")

    def __init__(
        self,
        function: str,
        head: tuple[Any, ...],
        inputs: Sequence[tuple[int, TensorSpec]],
        result: TensorSpec,
        factor: float = 1,
    ) -> None:
        self._function = function
        self._head = head
        self._inputs = [(place, TensorDescriptor.cached(spec)) for place, spec in inputs]
        self._result = TensorDescriptor.cached(result)
        self._scalar = scalar_type(DTYPES[result.dtype].accumulate)
        self._factor = factor
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the call."""
        scalar = self._scalar
        operands: list[Any] = []
        for place, descriptor in self._inputs:
            operands += (descriptor, pointers[place])
        getattr(context.library, self._function)(
            context.handle,
            *self._head,
            scalar(self._factor * alpha),
            *operands,
            scalar(beta),
            self._result,
            pointers[-1],
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: {self._function}"
