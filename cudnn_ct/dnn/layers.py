"""Softmax, reductions and dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dtypes import as_dtype
from ..ops._operands import stream_of
from ..ops.dropout import DropoutMask, DropoutState
from ..shapes.parse import as_choice
from .arguments import checked_flag, integers
from .arrays import on_device
from .availability import ops

__all__ = ["GpuDnnDropoutOp", "GpuDnnReduction", "GpuDnnSoftmax", "GpuDnnSoftmaxGrad", "dropout"]

# Theano's names of the reductions, and ours.
REDUCTIONS = {
    "add": "add",
    "mul": "mul",
    "minimum": "min",
    "maximum": "max",
    "absmax": "amax",
    "avg": "avg",
    "norm1": "norm1",
    "norm2": "norm2",
}


class GpuDnnSoftmax:
    """Softmax: ``exp(x) / sum(exp(x))``, or its logarithm. See :func:`cudnn_ct.softmax`."""

    def __init__(self, algo: str, mode: str, *, tensor_format: str | None = None) -> None:
        self.algo, self.mode = algo, mode
        _check_format(tensor_format)

    def __call__(self, x: Any) -> Any:
        """Return the softmax of ``x``."""
        return ops().softmax(x, algo=self.algo, mode=self.mode)


class GpuDnnSoftmaxGrad:
    """Gradient of the softmax with respect to its input. See :func:`cudnn_ct.softmax_backward`."""

    def __init__(self, algo: str, mode: str, *, tensor_format: str | None = None) -> None:
        self.algo, self.mode = algo, mode
        _check_format(tensor_format)

    def __call__(self, dy: Any, sm: Any) -> Any:
        """Return the gradient, from the result ``sm`` of the softmax."""
        return ops().softmax_backward(dy, sm, algo=self.algo, mode=self.mode)


class GpuDnnReduction:
    """Reduction over axes, which are removed. See :func:`cudnn_ct.reduce`."""

    def __init__(
        self,
        red_op: str,
        axis: Any = None,
        acc_dtype: Any = None,
        dtype: Any = None,
        return_indices: bool = False,
    ) -> None:
        self.red_op = as_choice(red_op, tuple(REDUCTIONS), "red_op")
        self.axis = integers(axis)
        self.return_indices = checked_flag(return_indices, "return_indices")
        self.acc_dtype, self.dtype = (
            None if one is None else as_dtype(one).name for one in (acc_dtype, dtype)
        )

    def __call__(self, inp: Any) -> Any:
        """Return the reduction of ``inp``, or a list of it and the indices."""
        inp = on_device(inp, "inp")
        own = as_dtype(inp.spec.dtype).accumulate
        if self.acc_dtype not in (None, own):
            text = f"acc_dtype does not match {inp.spec.dtype}: got {self.acc_dtype}, expected {own} or None"
            raise ValueError(text)
        if self.dtype not in (None, inp.spec.dtype) and own != inp.spec.dtype:
            inp = ops().transform(inp, dtype=own)  # else the result is rounded to half precision first
        axis = tuple(self.axis) if isinstance(self.axis, list) else self.axis
        reduce = ops().reduce_with_indices if self.return_indices else ops().reduce
        found = reduce(inp, op=REDUCTIONS[self.red_op], axis=axis)
        y, *indices = found if self.return_indices else (found,)
        if self.dtype not in (None, inp.spec.dtype):
            y = ops().transform(y, dtype=self.dtype)
        return [y, *indices] if self.return_indices else y


class Dropped(NamedTuple):
    """Result of :func:`dropout`: ``desc`` and ``states`` are the random state, ``odesc`` is the mask."""

    y: Any
    desc: DropoutState
    odesc: DropoutMask
    states: DropoutState


def dropout(x: Any, dropout: float = 0.0, seed: int = 4242) -> Dropped:
    """Return ``x * mask / (1 - dropout)`` with a random mask. See :func:`cudnn_ct.dropout`."""
    state = ops().DropoutState(dropout, seed, stream=stream_of(x, "x", None))
    y, mask = ops().dropout(x, state)
    return Dropped(y, state, mask, state)


class GpuDnnDropoutOp:
    """Dropout with an existing random state. See :func:`cudnn_ct.dropout`."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = checked_flag(inplace, "inplace")

    def __call__(self, inp: Any, descriptor: DropoutState, state: DropoutState | None = None) -> list[Any]:
        """Return a list of the result, the random state and the mask."""
        if state is not None and state is not descriptor:
            raise ValueError(f"state is not the descriptor: got {state!r}, expected {descriptor!r} or None")
        y, mask = ops().dropout(inp, descriptor, out=inp if self.inplace else None)
        return [y, descriptor, mask]


def _check_format(tensor_format: str | None) -> None:
    if tensor_format is not None:
        as_choice(tensor_format, ("bc01",), "tensor_format")
