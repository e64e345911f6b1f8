"""Operators of torch, made from the table of operations with a gradient: ``torch.ops.cudnn_ct``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._caches import BoundedDict
from ..gradients.formulas import Param, Row
from .autodiff import Gradient, Known, register_gradient
from .kernels import FINDERS, KERNELS, ROWS, fake_results, on_cpu, options_of, refuse_tangents, watched
from .leaving import PLAIN
from .prepared import WithoutMemoryError
from .tracing import has_tangents, is_compiling
from .transforms import autocast, batched, cast_of

__all__ = ["LIBRARY", "call", "is_wide_gelu", "only_computes", "only_kernel", "recorded"]

LIBRARY = torch.library.Library("cudnn_ct", "DEF")

MAX_KNOWN = 4096  # calls of an operator that were made, but for strides and dtypes
MAX_LAYOUTS = 8  # of the tensors of such a call
_known: dict[str, BoundedDict] = {}

_TYPES = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "ints": "SymInt[]",  # the window of an average of whole images is their size
    "padding": "int[]",
    "shape": "SymInt[]",
    "lengths": "int[]",
}


# Memory formats of results follow from those of operands, which torch's compiler must not change. The first
# tag is newer than the oldest torch that is supported.
_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
_TAGS = (_STRIDES, torch.Tag.pt2_compliant_tag)

# Operators that allocate memory of the package, which a CUDA graph cannot repeat; the tag is newer, too.
_NOT_CAPTURED = {"lstm_backward", "rnn_backward"} if hasattr(torch.Tag, "cudagraph_unsafe") else set[str]()


def call(name: str) -> Callable[..., Any]:
    """Return a function that calls an operator: by torch's dispatcher only if that has something to do.

    The dispatcher is needed for tracing, modes and transformations. It takes longer than all else that a call
    does in Python, most of all if it records a gradient.
    """
    operator, kernel, row = getattr(torch.ops.cudnn_ct, name).default, KERNELS[name], ROWS[name]
    count, single, cast, options = len(row.operands), len(row.results) == 1, cast_of(name), options_of(name)
    recording, recording_known = GRADIENTS[name].recorded(kernel), GRADIENTS[name].recorded_known()
    optional = tuple(row.operands.index(one) for one in row.optional)
    calls = _known.setdefault(name, BoundedDict(MAX_KNOWN))

    def run(*given: Any) -> Any:
        if is_compiling():
            if has_tangents():
                refuse_tangents(name, given[:count])
            return operator(*given)
        tensors, key = given[:count], None
        present: Sequence[Any] = tensors
        absent: Sequence[bool] = ()
        try:
            casts = cast is not None and _autocasts()
            # As `_dispatches` does: a call of a function takes as long as these three.
            dispatches = _modes() or _transformations() is not None or _tracing() is not None
            if not (casts or dispatches or forward_ad._current_level >= 0 or watched.calls is not None):
                if optional:
                    present = [one for one in tensors if one is not None]
                    absent = [tensors[place] is None for place in optional]
                try:
                    key = options(), given[count:], *absent, *[one.shape for one in present]
                    found = calls.get(key, ())
                except (AttributeError, RuntimeError, TypeError):  # no tensor, a nested one, lists
                    found, key = (), None
                for known in found:
                    if known.fits(*present):
                        if known.records and _grad_enabled():
                            return recording_known(known, *tensors)
                        outs = known.call.run(tensors)
                        return outs[0] if single else tuple(outs)
            _check_tensors(name, row, tensors)
            if (way := _way(tensors)) is _DISPATCHED:
                if has_tangents():  # torch.func unwraps them before the kernel
                    refuse_tangents(name, tensors)
                return operator(*given)
            if casts and cast is not None:
                given = tuple(cast(given))
            result = recording(*given) if way is _RECORDED else kernel(*given)
        except WithoutMemoryError:  # as of `torch.autograd.grad(..., is_grads_batched=True)`
            return operator(*given)
        if key is not None and not row.updated and not (call := FINDERS[name](given)).varies:
            calls[key] = [Known(call, present, given[count:]), *calls.get(key, ())[: MAX_LAYOUTS - 1]]
        return result

    return run


def _check_tensors(name: str, row: Row, tensors: Sequence[Any]) -> None:
    for operand, one in zip(row.operands, tensors, strict=False):
        absent = one is None and operand in (*row.optional, *row.updated)
        if not absent and not hasattr(one, "__torch_function__"):
            raise no_tensor(name, operand, one)


def no_tensor(operator: str, operand: str, given: Any) -> TypeError:
    """Return the error of an operand that is not a tensor."""
    return TypeError(f"cudnn_ct::{operator}: {operand} is not a Tensor: got {type(given).__name__}")


def is_wide_gelu(x: torch.Tensor, activation: str | None) -> bool:
    """Return whether torch computes an activation: cuDNN has gelu in half precision and in TF32 only."""
    return activation in ("gelu", "gelu_tanh") and x.dtype in (torch.float32, torch.float64)


def recorded(*tensors: torch.Tensor | None) -> bool:
    """Return whether a gradient is recorded for any of the tensors."""
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors)


def only_kernel(tensors: Sequence[Any]) -> bool:
    """Return whether the dispatcher would only cast for autocast, call the kernel and record the gradient."""
    return _way(tensors) is not _DISPATCHED


def only_computes(tensors: Sequence[Any]) -> bool:
    """Return whether the dispatcher would only call the kernel, but for autocast."""
    return _way(tensors) is _COMPUTED


def _dispatches() -> bool:
    """Return whether the dispatcher has something to do for all tensors."""
    return bool(_modes()) or _transformations() is not None or _tracing() is not None


def _way(tensors: Sequence[Any]) -> object:
    """Return what a call has to do: all that the dispatcher does, record the gradient, or only compute."""
    if _dispatches():
        return _DISPATCHED
    way, enabled = _COMPUTED, _grad_enabled()
    for tensor in tensors:
        if tensor is not None:
            if type(tensor) not in PLAIN or not tensor.is_cuda or tensor.is_neg():
                return _DISPATCHED
            if enabled and tensor.requires_grad:
                way = _RECORDED
    return way


_DISPATCHED, _RECORDED, _COMPUTED = object(), object(), object()
_autocasts = torch.is_autocast_enabled
_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_transformations = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state


def _schema(name: str, row: Row) -> str:
    """Return the schema of an operator: operands, then parameters with their defaults."""
    written = iter("ab")
    operands = [
        f"Tensor({next(written)}!)? {one}"
        if one in row.updated
        else f"Tensor{'?' * (one in row.optional)} {one}"
        for one in row.operands
    ]
    params = [f"{_TYPES[param.kind]}{_default(one, param)}" for one, param in row.params.items()]
    results = ["Tensor"] * len(row.results)
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"{name}({', '.join([*operands, *params])}) -> {returned}"


def _default(name: str, param: Param) -> str:
    if param.optional:
        return f"? {name}=None"
    if param.default is None:
        return f" {name}"
    if isinstance(param.default, str):
        return f' {name}="{param.default}"'
    value = list(param.default) if isinstance(param.default, tuple) else param.default
    return f" {name}={value}"


def _define(name: str, row: Row) -> None:
    tags = (*_TAGS, torch.Tag.cudagraph_unsafe) if name in _NOT_CAPTURED else _TAGS
    LIBRARY.define(_schema(name, row), tags=tags)
    LIBRARY.impl(name, KERNELS[name], "CUDA")
    LIBRARY.impl(name, on_cpu(name), "CPU")
    torch.library.register_fake(f"cudnn_ct::{name}", partial(_fake, name), lib=LIBRARY)
    operator = getattr(torch.ops.cudnn_ct, name).default
    register_gradient(LIBRARY, name, GRADIENTS[name], operator)
    cast = autocast(name, operator)
    if cast is not None:
        LIBRARY.impl(name, cast, "AutocastCUDA")
    torch.library.register_vmap(f"cudnn_ct::{name}", batched(row, operator), lib=LIBRARY)


def _fake(name: str, *given: Any) -> Any:
    return fake_results(name, given)


class _Operators:
    """The operators that formulas of gradients call, with parameters by name."""

    broadcast_to = staticmethod(torch.broadcast_to)
    gelu_backward = staticmethod(torch.ops.aten.gelu_backward)

    @staticmethod
    def conv_backward_bias(dy: Any) -> Any:
        return dy.sum((0, *range(2, dy.dim())))  # torch.compile joins it with what it reads

    def __getattr__(self, name: str) -> Any:
        run, row = call(name), ROWS[name]

        def operator(*tensors: Any, **params: Any) -> Any:
            left = row.operands[len(tensors) :]
            operands = (*tensors, *[params.get(one) for one in left])
            return run(*operands, *[params.get(one, param.default) for one, param in row.params.items()])

        setattr(self, name, operator)
        return operator


_OPERATORS = _Operators()
GRADIENTS = {name: Gradient(name, row, _OPERATORS) for name, row in ROWS.items()}

for _name, _row in ROWS.items():
    _define(_name, _row)
