"""Plans of one call of libcudnn_ext, whose functions take a stream, and no handle or descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from cudnn_doctor.read.find import TOOLKITS

from .._lib import load
from ..context import Context
from ..cuda.debug import record_launch
from ..errors import ExecutionFailedError, NotSupportedError
from ..shapes.specs import INT_MAX
from .base import Plan, packed_of, tensors_of
from .program import ArgumentTemplate
from .wrappers import on_operands_of, zero_results


class StreamCall:
    """The call ``f(stream, *arguments)``; ``names`` are those of a run's pointers, in their order."""

    __slots__ = ("_arguments", "_function")
    workspace = 0

    def __init__(self, function: str, arguments: Sequence[Any], names: Sequence[str]) -> None:
        self._function = function
        self._arguments = ArgumentTemplate(arguments, names)

    # The functions do not scale, so alpha and beta are unused.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the call."""
        function, nvrtc = getattr(context.library, self._function), context.library.nvrtc
        try:
            function(context.stream.handle, *self._filled(pointers))
        except ExecutionFailedError as error:
            raise _explained(error, nvrtc) from None
        record_launch(self._function, context.stream, self._function)

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: {self._function}"

    def _filled(self, pointers: Sequence[int]) -> list[Any]:
        """Return the arguments of a run behind the stream, in a new list."""
        return self._arguments.filled(pointers)


def on_contiguous(operation: str, problem: Any, make: Callable[[Any], Plan]) -> Plan:
    """Return the plan of a problem from that of its contiguous tensors, with copies of the others.

    Without elements of the first tensor, the results are 0. cuDNN counts elements in 32 bits.
    """
    tensors = tensors_of(problem)
    if not next(iter(tensors.values())).size:
        return zero_results(problem.results)
    for name, spec in tensors.items():
        if spec.size > INT_MAX:
            raise NotSupportedError(f"{operation} counts the {spec.size:,} elements of {name} in 32 bits")
    contiguous = packed_of(problem, "nchw")
    return on_operands_of(make(contiguous), problem, contiguous)


def require_function(operation: str, name: str) -> None:
    """Raise NotSupportedError if this cuDNN does not have a C function that an operation needs."""
    if missing := load().why_missing(name):
        raise NotSupportedError(f"{operation} {missing}")


def _explained(error: ExecutionFailedError, nvrtc: Sequence[str]) -> ExecutionFailedError:
    """Return the error with what a compilation needs, because cuDNN's status does not name it."""
    found = " and ".join(nvrtc) or "none was found, so install the wheel nvidia-cuda-nvrtc"
    toolkit = next((f"{name}={os.environ[name]}" for name in TOOLKITS if os.environ.get(name)), "")
    return ExecutionFailedError(
        f"{error}; cuDNN compiles this kernel by the NVRTC of its own CUDA major version ({found}), with the "
        f"headers of a CUDA toolkit ({toolkit or 'CUDA_HOME is not set'}; else /usr/local/cuda or /opt/cuda)",
        status=error.status,
        function=error.function,
        detail=error.detail,
    )
