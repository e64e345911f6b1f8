"""Whether torch compiles, exports or differentiates calls, and functions that it does not compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch.autograd import forward_ad

__all__ = [
    "differentiates",
    "has_tangents",
    "is_compiling",
    "is_differentiated",
    "is_exporting",
    "not_compiled",
]

is_compiling = torch.compiler.is_compiling

_eval_frame = torch._C._dynamo.eval_frame
_set_strategy = getattr(_eval_frame, "set_code_exec_strategy", None)  # newer than the oldest torch


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run calls of a function, and all that it calls, without torch.compile, which still traces it.

    Code that torch.compile leaves to Python, as after a graph break, calls it. It would be compiled for each
    function of torch, until torch.compile gives up at its limit of programs.
    """
    if _set_strategy is not None:
        skip = _eval_frame._FrameAction.SKIP
        _set_strategy(function.__code__, _eval_frame._FrameExecStrategy(skip, skip))
    return function


def _constant(function: Callable[[], bool]) -> Callable[[], bool]:
    """Have torch.compile call a function while it traces; its programs are for one state of torch.func.

    As ``torch.compiler.assume_constant_result``, which imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def is_exporting() -> bool:
    """Return whether a program is exported, which others may run as it is; torch 2.6 cannot tell.

    Not ``torch.compiler.is_exporting``, which is True in all that torch.compile traces before torch 2.13.
    """
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


@_constant
def has_tangents() -> bool:
    """Return whether there are forward-mode derivatives, although no operand may have one."""
    return bool(forward_ad._current_level >= 0)


@_constant
def is_differentiated() -> bool:
    """Return whether derivatives are computed that operators do not have."""
    return forward_ad._current_level >= 0 or differentiates()


def differentiates() -> bool:
    """Return whether torch.func differentiates; operators have rules for its vmap only."""
    if _transformations() is None:
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() != TransformType.Vmap for level in levels)


_transformations = torch._C._functorch.peek_interpreter_stack
