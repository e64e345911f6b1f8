"""The operators in unchanged models: a mode of torch that serves its functions, and a report of its calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import Any, Self

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from ..errors import NotSupportedError
from .rules import RULES, LeftToTorchError

__all__ = ["Report", "enable", "report"]

GROUPS = tuple(sorted({group for group, _ in RULES.values()}))
MAX_REJECTED = 1024  # calls that cuDNN has rejected, of a block


class Report:
    """The calls of a block: how many were served, and why others were left to torch.

    Attributes
    ----------
    served : Counter
        The number of calls that operators served, by group.
    left : Counter
        The number of calls left to torch, by group and reason.
    library : str
        The cuDNN that serves, once a call was served.
    """

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.left: Counter[tuple[str, str]] = Counter()

    @property
    def library(self) -> str:
        """The version and path of the cuDNN of this process; empty before a call was served."""
        if not self.served:
            return ""
        from .._info import library_info

        info = library_info()
        return f"cuDNN {info.version} in {info.path}"

    def __str__(self) -> str:
        lines = [f"served  {group}: {count}" for group, count in sorted(self.served.items())]
        lines += [f"torch   {group}: {count}, {why}" for (group, why), count in sorted(self.left.items())]
        return "\n".join([*lines, *([self.library] if self.served else [])]) or "no calls"


class enable(ContextDecorator):
    """Serve the functions of torch by cuDNN's operators, in a block or a decorated function.

    Convolutions, pooling, norms, softmax, attention and recurrent networks of an unchanged model on CUDA
    tensors are computed by the operators of this package, with their gradients. Other calls are left to
    torch, and :func:`report` lists them with the reason. A block applies to the thread that enters it. Blocks
    may be nested: the innermost one decides.

    Parameters
    ----------
    skip : sequence of str
        Groups that are left to torch: of "attention", "batch_norm", "conv", "conv_transpose", "gru",
        "instance_norm", "layer_norm", "lstm", "pool", "rms_norm", "rnn", "softmax".

    Raises
    ------
    ValueError
        A group does not exist.

    Notes
    -----
    A model that is compiled inside the block has the operators in its graphs. One that was compiled before is
    compiled again. Calls are not counted while a program is traced or compiled.

    Examples
    --------
    >>> with cudnn_ct.torch.enable() as block:
    ...     y = model(x)
    >>> print(block.report())
    """

    def __init__(self, *, skip: Sequence[str] = ()) -> None:
        for group in skip:
            if group not in GROUPS:
                raise ValueError(f"skip has an unknown group: got {group!r}, expected of {', '.join(GROUPS)}")
        self._skip = frozenset(skip)
        self._report = Report()

    def __enter__(self) -> Self:
        mode = _Serving(self._skip, self._report)
        mode.__enter__()
        _thread.modes.append(mode)
        _thread.last = self._report
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.modes.pop().__exit__(*error)

    def report(self) -> Report:
        """Return the calls of all blocks and calls of this object."""
        return self._report


def report() -> Report:
    """Return the report of the block of this thread that was entered last.

    Returns
    -------
    Report
        An empty one before the first block.
    """
    return _thread.last


class _Thread(threading.local):
    """The modes of a thread that are entered, and the report of the last one."""

    def __init__(self) -> None:
        self.modes: list[_Serving] = []
        self.last = Report()


_thread = _Thread()


class _Serving(TorchFunctionMode):  # type: ignore[misc]
    """The mode of a block."""

    def __init__(self, skip: frozenset[str], made: Report) -> None:
        super().__init__()
        self._rules = {one: rule for one, rule in RULES.items() if rule[0] not in skip}
        self._report = made
        self._rejected: dict[Any, str] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None:
            return func(*args, **kwargs)
        if torch.compiler.is_compiling():
            try:
                return rule[1](*args, **kwargs) if _on_device(args, kwargs) else func(*args, **kwargs)
            except LeftToTorchError:
                return func(*args, **kwargs)
        if _thread.modes and _thread.modes[-1] is not self:  # an outer block
            return func(*args, **kwargs)
        reason = self._served(func, rule, args, kwargs)
        return reason[0] if reason else func(*args, **kwargs)

    def _served(
        self, func: Any, rule: tuple[str, Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Return the result of a call in a tuple, or None if it is left to torch."""
        group, serve = rule
        key = None
        if self._rejected:
            key = _facts(func, args, kwargs)
            if key in self._rejected:
                self._report.left[group, self._rejected[key]] += 1
                return None
        try:
            if not _on_device(args, kwargs):
                raise LeftToTorchError("not on a CUDA device")
            if forward_ad._current_level >= 0:
                raise LeftToTorchError("forward-mode derivatives")
            result = serve(*args, **kwargs)
        except LeftToTorchError as error:
            self._report.left[group, str(error)] += 1
            return None
        except NotSupportedError as error:
            reason = str(error).partition("\n")[0]
            if len(self._rejected) >= MAX_REJECTED:
                self._rejected.clear()
            self._rejected[key or _facts(func, args, kwargs)] = reason
            self._report.left[group, reason] += 1
            return None
        self._report.served[group] += 1
        return (result,)


SERVED_DEVICES = ("cuda",)


def _on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return isinstance(first, torch.Tensor) and first.device.type in SERVED_DEVICES


def _facts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what decides whether cuDNN supports a call."""
    values = (*args, *sorted(kwargs.items(), key=lambda pair: pair[0]))
    return func, *(_fact(value) for value in values)


def _fact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.requires_grad
    if isinstance(value, tuple | list):
        return tuple(map(_fact, value))
    return repr(value)
