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

# What Theano's names of reductions are here.
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
    """A softmax.

    Parameters
    ----------
    algo : {"fast", "accurate", "log"}
        ``"log"`` gives the logarithm of the softmax.
    mode : {"instance", "channel"}
        Whether the sum is over all of an image, or over its channels at each place.
    tensor_format : "bc01", optional
        Of the older module, which has no other.

    Raises
    ------
    ValueError
        ``tensor_format`` is another.

    Notes
    -----
    By :func:`cudnn_ct.softmax`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> ct.dnn.GpuDnnSoftmax("accurate", "channel")(ct.asarray([[1, 1]], "float32")).numpy()
    array([[0.5, 0.5]], dtype=float32)
    """

    def __init__(self, algo: str, mode: str, *, tensor_format: str | None = None) -> None:
        self.algo, self.mode = algo, mode
        _check_format(tensor_format)

    def __call__(self, x: Any) -> Any:
        """Compute the softmax.

        Parameters
        ----------
        x : device array, shape (N, C, ...), float16 | bfloat16 | float32 | float64

        Returns
        -------
        DeviceArray, shape and dtype of x

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.softmax`.
        """
        return ops().softmax(x, algo=self.algo, mode=self.mode)


class GpuDnnSoftmaxGrad:
    """The gradient of a softmax.

    Parameters
    ----------
    algo, mode, tensor_format
        As in :class:`GpuDnnSoftmax`.

    Notes
    -----
    By :func:`cudnn_ct.softmax_backward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> dy, sm = ct.asarray([[1, 0, 0]], "float32"), ct.asarray([[0.25, 0.25, 0.5]], "float32")
    >>> ct.dnn.GpuDnnSoftmaxGrad("accurate", "channel")(dy, sm).numpy()
    array([[ 0.1875, -0.0625, -0.125 ]], dtype=float32)
    """

    def __init__(self, algo: str, mode: str, *, tensor_format: str | None = None) -> None:
        self.algo, self.mode = algo, mode
        _check_format(tensor_format)

    def __call__(self, dy: Any, sm: Any) -> Any:
        """Compute the gradient with regard to the input of the softmax.

        Parameters
        ----------
        dy : device array, shape and dtype of sm
        sm : device array
            What the softmax gave.

        Returns
        -------
        DeviceArray, shape and dtype of sm

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.softmax_backward`.
        """
        return ops().softmax_backward(sm, dy, algo=self.algo, mode=self.mode)


class GpuDnnReduction:
    """A reduction over some axes, which go.

    Parameters
    ----------
    red_op : {"add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"}
    axis : int or tuple of int, optional
        All by default.
    acc_dtype : dtype, optional
        What is computed in: only what cuDNN takes, float32 for half types, else the dtype of the operand.
    dtype : dtype, optional
        Of the result; by default that of the operand.
    return_indices : bool
        Whether to tell, for minimum and maximum, which element it was.

    Raises
    ------
    TypeError
        ``return_indices`` is not a bool.
    ValueError
        There is no such reduction.

    Notes
    -----
    By :func:`cudnn_ct.reduce`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x = ct.asarray([[1, -4, 3], [2, 0, -2]], "float32")
    >>> ct.dnn.GpuDnnReduction("norm1", 1)(x).numpy()
    array([8., 4.], dtype=float32)
    """

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
        """Reduce.

        Parameters
        ----------
        inp : device array, at most 8 axes, float16 | bfloat16 | float32 | float64

        Returns
        -------
        DeviceArray, or a list of it and the indices
            Indices are int32, in C order of the axes that go.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.reduce`; ValueError also where ``acc_dtype`` is another than cuDNN's.
        """
        inp = on_device(inp, "inp")
        own = as_dtype(inp.spec.dtype).accumulate
        if self.acc_dtype not in (None, own):
            raise ValueError(f"acc_dtype is {self.acc_dtype}; cuDNN reduces {inp.spec.dtype} in {own}")
        if self.dtype not in (None, inp.spec.dtype) and own != inp.spec.dtype:
            inp = ops().transform(inp, dtype=own)  # lest the result be rounded to the half type first
        axes = tuple(self.axis) if isinstance(self.axis, list) else self.axis
        found = ops().reduce(inp, op=REDUCTIONS[self.red_op], axes=axes, indices=self.return_indices)
        y, *indices = found if self.return_indices else (found,)
        if self.dtype not in (None, inp.spec.dtype):
            y = ops().transform(y, dtype=self.dtype)
        return [y, *indices] if self.return_indices else y


class Dropped(NamedTuple):
    """The result of :func:`dropout`: ``desc`` and ``states`` are the dice, ``odesc`` is for the gradient."""

    y: Any
    desc: DropoutState
    odesc: DropoutMask
    states: DropoutState


def dropout(x: Any, dropout: float = 0.0, seed: int = 4242) -> Dropped:
    """Drop elements at random, and divide the others by the probability that they stay.

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    dropout : float, at least 0 and less than 1
        The probability that an element is dropped.
    seed : int

    Returns
    -------
    Dropped
        ``y``, shape and dtype of x; ``desc`` and ``states``, both the :class:`cudnn_ct.DropoutState`;
        ``odesc``, the mask. ``cudnn_ct.dropout_backward(dy, odesc, desc)`` is the gradient.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`cudnn_ct.dropout`.

    Notes
    -----
    The dice are new at each call: the same seed drops the same elements.

    By :func:`cudnn_ct.dropout`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> y, desc, odesc, states = ct.dnn.dropout(ct.full((1000,), 1), 0.5, seed=7)
    >>> np.unique(y.numpy())
    array([0., 2.], dtype=float32)
    """
    state = ops().DropoutState(dropout, seed, stream=stream_of(x, "x", None))
    y, mask = ops().dropout(x, state)
    return Dropped(y, state, mask, state)


class GpuDnnDropoutOp:
    """A dropout by dice that are there.

    Parameters
    ----------
    inplace : bool
        Whether the result takes the place of the operand.

    Raises
    ------
    TypeError
        ``inplace`` is not a bool.

    Notes
    -----
    By :func:`cudnn_ct.dropout`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> y, state, mask = ct.dnn.GpuDnnDropoutOp()(ct.full((1000,), 1), ct.DropoutState(0.5, seed=7))
    >>> np.unique(y.numpy())
    array([0., 2.], dtype=float32)
    """

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = checked_flag(inplace, "inplace")

    def __call__(self, inp: Any, descriptor: DropoutState, state: DropoutState | None = None) -> list[Any]:
        """Drop elements.

        Parameters
        ----------
        inp : device array, any shape, float16 | bfloat16 | float32 | float64
        descriptor : DropoutState
        state : DropoutState, optional
            If given, the descriptor again.

        Returns
        -------
        list
            The result, the state, and the mask that :func:`cudnn_ct.dropout_backward` takes.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.dropout`; ValueError also where ``state`` is another.
        """
        if state is not None and state is not descriptor:
            raise ValueError(f"state is {state!r}; the dice are those of the descriptor, {descriptor!r}")
        y, mask = ops().dropout(inp, descriptor, out=inp if self.inplace else None)
        return [y, descriptor, mask]


def _check_format(tensor_format: str | None) -> None:
    if tensor_format is not None:
        as_choice(tensor_format, ("bc01",), "tensor_format")
