"""What torch's compiler and ``torch.export`` do with the calls of a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["is_compiling", "is_exporting", "not_compiled"]

is_compiling = torch.compiler.is_compiling
# Whether a program is exported, which others may run as it is; torch 2.6 cannot tell.
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)

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
