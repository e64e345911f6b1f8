"""The operators in unchanged models: a mode of torch that serves its functions, and a report of its calls.

A mode calls Python for every function of a model, which takes as long as the model itself at small batches.
Blocks can bind the names of the served functions instead.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator, suppress
from functools import partial
from typing import Any, Never, Self

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .._config import config
from .._hints import corrected, known_keywords
from ..errors import NotSupportedError
from ..shapes.checks import as_bool
from ..shapes.specs import UNALIGNED
from .attention_rules import AGAIN
from .blocks import Block, Mode, block_of_backward, groups_of, thread
from .by_steps import by_steps
from .faster import SLOWER, TIMED, Resting, is_timed, torch_is_faster
from .kernels import settings
from .leaving import PLAIN, LeftToTorchError, has_functions
from .prepared import current_stream
from .replaced import Pair, Replaced, is_method
from .reports import Report
from .rules import RULES
from .settled import Settled, SettledCalls
from .tracing import differentiates, is_compiling, is_differentiated, is_exporting, not_compiled

__all__ = ["Report", "enable", "report"]

MAX_REJECTED = 1024  # calls that cuDNN has rejected, of a block


class enable(ContextDecorator):
    """Serve the functions of torch by cuDNN's operators, in a block or a decorated function.

    Convolutions, pooling, norms, softmax, attention and recurrent networks of an unchanged model on CUDA
    tensors are computed by the operators of this package, with their gradients. Other calls are left to
    torch, and :func:`report` lists them with the reason. A block applies to the thread that enters it. Blocks
    may be nested: the innermost one decides. Each step of a decorated generator or coroutine is in a block.

    Parameters
    ----------
    skip : str or sequence of str
        Groups that are left to torch: of "attention", "batch_norm", "conv", "conv_transpose", "gru",
        "instance_norm", "layer_norm", "lstm", "pool", "rms_norm", "rnn", "softmax".
    rebind : bool
        Bind the names of the served functions in modules, such as ``torch.nn.functional.conv2d``, to others
        while there are such blocks, instead of entering a mode of torch: calls of other functions cost
        nothing then. All threads see the other functions. In threads without a block these call torch's, but
        ``torch.jit.script`` and pickles of functions fail meanwhile. ``__torch_function__`` of classes and
        modes is called with torch's functions, which are not those that the names are bound to, and modes see
        only calls that are not served. A function that was kept elsewhere, such as in a list, is not served,
        and methods of tensors are not in compiled programs. A module that had none of the functions when a
        block found it, and has them later, is searched after the next import.

    Raises
    ------
    TypeError
        ``skip`` is neither a name nor a sequence of names, ``rebind`` is not a bool, or the decorated object
        is not callable.
    ValueError
        A group does not exist.
    RuntimeError
        A block is left that is not open, or that another thread has entered; the latter ends.

    Notes
    -----
    A model that is exported inside the block has the operators in its graph; one that is compiled has only
    the operators for convolutions, attention and recurrent networks, because torch's compiler joins norms,
    pooling and softmax with the calls around them. A model that was compiled before is compiled again. Calls
    are not counted while a program is traced or compiled.

    Examples
    --------
    >>> with cudnn_ct.torch.enable() as block:
    ...     y = model(x)
    >>> print(block.report())
    """

    @known_keywords
    def __init__(
        self, *more: Never, skip: Sequence[str] = (), rebind: bool = False, **unknown: Never
    ) -> None:
        if more:
            raise TypeError(
                f"enable() takes keywords only: got {type(more[0]).__name__}; write `with enable():` around "
                "calls, or @enable() before a function"
            )
        if unknown:
            corrected(enable, locals())
        self._skip, self._rebind = groups_of(skip), as_bool(rebind, "rebind")
        self._report = Report()
        self._rejected: dict[Any, str] = {}
        self._resting = Resting()
        self._open: list[Block] = []

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return a function that runs in a block, of a generator or a coroutine each step."""
        if not callable(function):
            raise TypeError(f"function must be callable: got {type(function).__name__}")
        return by_steps(self, function) or super().__call__(function)

    @not_compiled
    def __enter__(self) -> Self:
        made = _replaced if self._rebind else _Serving
        block = Block(self._skip, self._report, self._rejected, self._resting, made)
        block.begin()
        self._open.append(block)
        return self

    @not_compiled
    def __exit__(self, *error: Any) -> None:
        own = [one for one in self._open if one.blocks is thread.blocks]
        if not self._open:
            raise RuntimeError("the block of enable() is not open: it has ended, or was not entered")
        block = (own or self._open)[-1]
        self._open.remove(block)
        block.end()
        if not own:
            raise RuntimeError(
                "a block of enable() was left in another thread than it was entered in; it has ended, but it "
                "applied to that thread: enter and leave it in one thread"
            )

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
    return thread.last or Report()


# --- calls of a mode ---------------------------------------------------------------------------------------

_UNFLATTEN = torch.Tensor.unflatten  # calls a method of its superclass, which torch.compile does not trace


class _Serving(Mode):
    """The mode that serves."""

    @not_compiled
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is None or rule[0] in self.block.skip:
            if func is _UNFLATTEN and is_compiling():
                return args[0].unflatten(*args[1:], **kwargs)
            return func(*args, **kwargs)
        if is_compiling():
            return _traced(func, args, kwargs)
        blocks = thread.blocks.open
        if blocks and blocks[-1] is not self.block:  # an outer block
            return func(*args, **kwargs)
        served = None if self.block.rests(rule[0]) else _served(self.block, func, args, kwargs)
        return served[0] if served else func(*args, **kwargs)


# --- calls -------------------------------------------------------------------------------------------------

SERVED_DEVICES = ("cuda",)
# Errors of operators about arguments: torch computes the call, or raises an error of its own.
ARGUMENT_ERRORS = (TypeError, ValueError, IndexError, NotImplementedError)


def replacement_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that serves the calls of a function, or of a method of tensors, within blocks.

    torch.compile traces functions in place of others, but not methods.
    """
    group, method, leave = RULES[original][0], is_method(original), _left_to_torch(original)

    @functools.wraps(original)
    @not_compiled
    def replacement(*args: Any, **kwargs: Any) -> Any:
        block = thread.blocks.innermost
        if is_compiling():
            if method or block is None or group in block.skip:
                return original(*args, **kwargs)
            return _traced(original, args, kwargs)
        if block is None:
            block = block_of_backward()
        if block is None or thread.inside or group in block.skip:
            return leave(*args, **kwargs)
        if method and args and type(args[0]) not in PLAIN:
            return leave(*args, **kwargs)
        thread.inside = True
        try:
            served = None if block.rests(group) else _served(block, original, args, kwargs)
            return served[0] if served else leave(*args, **kwargs)
        finally:
            thread.inside = False

    return replacement


def _left_to_torch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for the calls of a function, or of a method, that are left to torch.

    Functions of Python, and methods, look up their own names for classes and modes with functions of their
    own, and would pass the replacements on to them.
    """
    if isinstance(original, types.BuiltinFunctionType):
        return original

    def leave(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values()) if kwargs else args
        if has_torch_function(values):
            return handle_torch_function(original, values, *args, **kwargs)
        return original(*args, **kwargs)

    return leave


# torch.compile joins these with the calls around them. With norms and pooling served, compiled training steps
# of three networks took 4 to 12 % longer on an H200; softmax was not measured.
_JOINED_BY_TORCH = ("batch_norm", "instance_norm", "layer_norm", "pool", "rms_norm", "softmax")


def _traced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call that is traced by torch.compile or torch.export."""
    group, serve = RULES[func]
    joined = group in _JOINED_BY_TORCH and not is_exporting()
    if joined or not _on_device(args, kwargs) or is_differentiated():
        return func(*args, **kwargs)
    if any(isinstance(one, torch.Tensor) and has_functions(type(one)) for one in (*args, *kwargs.values())):
        return func(*args, **kwargs)
    try:
        return serve(*args, **kwargs)
    except LeftToTorchError:
        return func(*args, **kwargs)


def _served(
    block: Block, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Return the result of a call in a tuple, or None if it is left to torch."""
    group, serve = RULES[func]
    report, rejected, key, settles = block.report, block.rejected, None, None
    values = (*args, *kwargs.values()) if kwargs else args
    try:
        settles, known = _settled.find(func, values, kwargs)
        if known is not None:
            if known.runs < TIMED:
                _count(block, known, func, args, kwargs)
            if known.is_slower:
                block.resting.add(group, report.served[group], block.records)
                raise LeftToTorchError(SLOWER)
            if (repeated := known.repeat(values)) is not None:
                report.served[group] += 1
                return (repeated,)
        if not _on_device(args, kwargs):
            raise LeftToTorchError("not on a CUDA device")
        _check_types(values)
        if rejected:
            key = _facts(func, values, kwargs)
            if key in rejected:
                raise LeftToTorchError(rejected[key])
        if forward_ad._current_level >= 0:
            raise LeftToTorchError("forward-mode derivatives")
        if torch._C._get_tracing_state() is not None:
            raise LeftToTorchError("torch.jit.trace records it")
        if _counts_operations():
            raise LeftToTorchError("torch.utils.flop_counter counts torch's operators")
        if _is_computed_again():
            raise LeftToTorchError("torch.utils.checkpoint computes it again")
        made = partial(serve, *args, **kwargs)
        result = made() if settles is None else _settled.learn(settles, values, made)
    except LeftToTorchError as error:
        report.left[group, str(error)] += 1
        return None
    except ARGUMENT_ERRORS as error:
        report.left[group, f"{type(error).__name__}: {_first_line(error)}"] += 1
        return None
    except NotSupportedError as error:
        reason = _first_line(error)
        if len(rejected) >= MAX_REJECTED:
            rejected.clear()
        rejected[key or _facts(func, values, kwargs)] = reason
        if settles is not None:
            _settled.forget(settles)
        report.left[group, reason] += 1
        return None
    report.served[group] += 1
    return (result,)


def _count(block: Block, known: Settled, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count a call that is settled, and time it before the last run that is counted.

    The time includes the work of the block for a call.
    """
    known.runs += 1
    if known.runs < TIMED:
        return
    group, served = RULES[func][0], block.report.served
    before = served[group]

    def ours() -> Any:
        found = _served(block, func, args, kwargs)
        return found and found[0]

    device = next(one.device for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    stream = current_stream(device.index or 0)
    with suppress(Exception), torch._C.DisableTorchFunction():  # torch may lack memory; modes see no call
        if is_timed(group, stream):
            known.is_slower = torch_is_faster(ours, partial(func, *args, **kwargs), stream)
    served[group] = before


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_settled = SettledCalls(AGAIN)
_replaced = Replaced([Pair(one, replacement_of(one), group) for one, (group, _) in RULES.items()])


def _check_types(values: Sequence[Any]) -> None:
    """Leave calls that torch.func differentiates, and tensors that are not arrays of operands."""
    if differentiates():
        raise LeftToTorchError("derivatives by torch.func")
    for one in values:
        kind = type(one)
        if has_functions(kind):
            raise LeftToTorchError(f"{kind.__name__} has functions of its own")
        if isinstance(one, torch.Tensor):
            if one.layout is not torch.strided or one.is_nested:
                raise LeftToTorchError("tensors without strides")
            if not one.dim():
                raise LeftToTorchError("a tensor for a number")
        elif kind in (tuple, list) and one and type(one[0]) is not int:
            _check_types(one)


def _counts_operations() -> bool:
    """Return whether a mode of torch counts the operations of operators that it knows."""
    return bool(_modes()) and any(
        type(mode).__module__ == "torch.utils.flop_counter" for mode in _get_current_dispatch_mode_stack()
    )


_modes = torch._C._len_torch_dispatch_stack


def _is_computed_again() -> bool:
    """Return whether a checkpoint keeps this call, or computes it again.

    It compares what both save for the gradient, and no block may apply to the second call.
    """
    hooks = _saving_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) == checkpoint.__name__


_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def _on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return isinstance(first, torch.Tensor) and first.device.type in SERVED_DEVICES


def _facts(func: Any, values: Sequence[Any], names: Iterable[str]) -> Any:
    """Return what decides whether cuDNN supports a call, with ``names`` for the last values."""
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else None
    chosen = (*settings(), config.snapshot, cast, torch.is_grad_enabled())
    return func, chosen, *names, *(_fact(value) for value in values)


def _fact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        aligned = value.storage_offset() * value.element_size() & UNALIGNED
        return value.shape, value.stride(), value.dtype, value.device, aligned, value.requires_grad
    if isinstance(value, tuple | list):
        return tuple(map(_fact, value))
    return repr(value)
