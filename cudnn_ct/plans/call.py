"""Scalars in host memory, and plans of one call, in the form that most layers have or as a function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import copysign, isnan
from typing import Any

import numpy as np

from ..context import Context
from ..descriptors import TensorDescriptor
from ..dtypes import DTYPES
from ..shapes.specs import TensorSpec


@cache
def scalar_type(compute: str) -> Any:
    """Return the function that makes a pointer to alpha or beta: a double for float64, else a float."""
    kind = ctypes.c_double if compute == "float64" else ctypes.c_float
    common: dict[float, Any] = {value: ctypes.byref(kind(value)) for value in (0, 1)}

    def scalar(value: float) -> Any:
        if value == 0 and copysign(1, value) < 0:  # -0.0 equals the key 0
            return ctypes.byref(kind(value))
        return common.get(value) or ctypes.byref(kind(value))

    return scalar


def scalar_bytes(dtype: str, value: float = 0.0) -> Any:
    """Return a pointer to the value that ``cudnnSetTensor`` sets elements of a dtype to."""
    # For half precision it is a float32, in contrast to the manual: cuDNN 9.19 reads four bytes and rounds.
    row = DTYPES[dtype]
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    with np.errstate(all="ignore"):
        half = dtype in ("float16", "bfloat16")
        held = _round_to_odd(value) if half else np.asarray(value).astype(row.numpy)
    return ctypes.byref(ctypes.create_string_buffer(held.tobytes(), held.nbytes))


def element_bytes(dtype: str, value: float) -> bytes:
    """Return a value as an element of a dtype, rounded once: ml_dtypes rounds to float32 before."""
    with np.errstate(all="ignore"):
        narrow = DTYPES[dtype].itemsize < 4 and DTYPES[dtype].numpy.kind in "fV"
        held = _round_to_odd(value) if narrow else np.asarray(value)
        return held.astype(DTYPES[dtype].numpy).tobytes()


def _round_to_odd(value: float) -> Any:
    """Round to a float32 with an odd last bit if inexact, so that cuDNN's rounding is the only one."""
    single = np.array(value).astype(np.float32)
    nearest = float(single)
    if nearest != value and not isnan(value):
        bits = single.view(np.uint32)
        bits -= np.uint32(abs(nearest) > abs(value))
        bits |= np.uint32(1)
    return single


# --- plans -------------------------------------------------------------------------------------------------


class CallPlan:
    """The call ``f(handle, *head, alpha, (descriptor, pointer) of each input, beta, those of the result)``.

    ``inputs`` has, in the order of the C function, the place of each input among the pointers of a run, and
    its spec; the result is the last pointer. ``factor`` multiplies every alpha.
    """

    __slots__ = ("_alpha", "_arguments", "_beta", "_factor", "_function", "_places", "_scalar", "workspace")

    def __init__(
        self,
        function: str,
        head: tuple[Any, ...],
        inputs: Sequence[tuple[int, TensorSpec]],
        result: TensorSpec,
        factor: float = 1,
    ) -> None:
        self._function = function
        self._scalar = scalar_type(DTYPES[result.dtype].accumulate)
        self._factor = factor
        # All arguments but the handle, the pointers and other factors are created once, to save host time.
        self._alpha = len(head)
        arguments: list[Any] = [*head, self._scalar(factor)]
        self._places = []
        for place, spec in inputs:
            arguments += (TensorDescriptor.cached(spec), None)
            self._places.append((len(arguments) - 1, place))
        self._beta = len(arguments)
        self._arguments = [*arguments, self._scalar(0.0), TensorDescriptor.cached(result)]
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        arguments = self._arguments.copy()
        for at, place in self._places:
            arguments[at] = pointers[place]
        if alpha != 1:
            arguments[self._alpha] = self._scalar(self._factor * alpha)
        if beta != 0:
            arguments[self._beta] = self._scalar(beta)
        getattr(context.library, self._function)(context.handle, *arguments, pointers[-1])

    def describe(self) -> str:
        return f"chosen: {self._function}"


class FunctionPlan:
    """A plan whose run is a function of context, pointers, alpha and beta; ``about`` names it in texts."""

    __slots__ = ("_about", "run", "workspace")

    def __init__(self, about: str, run: Callable[..., None], workspace: int = 0) -> None:
        self._about, self.run, self.workspace = about, run, workspace

    def describe(self) -> str:
        return f"chosen: {self._about}"


class PointerSlot(str):
    """Placeholder for the pointer of an operand, by its name, in the arguments of a C function."""

    __slots__ = ()


class ArgumentTemplate:
    """All arguments of a C function but the handle; a run fills in its pointers, by their ``names``."""

    __slots__ = ("_places", "_ready")

    def __init__(self, arguments: Sequence[Any], names: Iterable[str]) -> None:
        order = {name: place for place, name in enumerate(names)}
        operands = [(at, name) for at, name in enumerate(arguments) if isinstance(name, PointerSlot)]
        self._places = [(at, order[name]) for at, name in operands if name in order]
        # The pointer of an operand that a run does not have is null.
        self._ready = [None if isinstance(one, PointerSlot) else one for one in arguments]

    def filled(self, pointers: Sequence[int]) -> list[Any]:
        """Return the arguments of a run, in a new list."""
        arguments = self._ready.copy()
        for at, place in self._places:
            arguments[at] = pointers[place]
        return arguments
