"""Dropout and its gradient; the state of the dice is an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import context
from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import BoundedDict, Context
from ..cuda import memory as memories
from ..cuda import stream as streams
from ..plans.wrappers import ZeroOrScale
from ..shapes.checks import one_dtype, result_spec
from ..shapes.dropout import check_probability
from ..shapes.parse import as_int
from ..shapes.specs import TensorSpec, nearest_layout
from ._call import PreparedCall, SinglePlan, run
from ._operands import check_writable, contiguous, representable, stream_of
from .dropout_legacy import DropoutDescriptor, mask_size, states_size
from .dropout_legacy import dropout as legacy_dropout

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Dropout", "DropoutMask", "DropoutState", "dropout", "dropout_backward"]


class DropoutMask(NamedTuple):
    """Which elements a dropout kept, for its gradient.

    Attributes
    ----------
    bits : DeviceArray
        One bit or byte for each element, as cuDNN has them.
    like : TensorSpec
        What the dropout was of, without gaps.
    state : DropoutState
        The dice that were thrown.
    """

    bits: DeviceArray
    like: TensorSpec
    state: DropoutState


class Dropout(NamedTuple):
    """The result of a dropout, and the mask that its gradient needs.

    Attributes
    ----------
    y : DeviceArray, or the array that was given as ``out``
    mask : DropoutMask
    """

    y: Any
    mask: DropoutMask


class DropoutState:
    """The dice of dropout on one device: the same seed and the same calls give the same masks.

    The same calls have operands of the same shapes, dtypes and order in memory.

    Parameters
    ----------
    probability : float, at least 0 and less than 1
        That an element is dropped.
    seed : int
        From 0 to 2**64 - 1.
    stream : optional
        On whose device, and on which stream the dice are seeded; by default those of ``ct.use``.

    Raises
    ------
    TypeError, ValueError
        The probability or the seed is none.
    NotInitializedError, AllocationError
        There is no device, or its memory ran out.

    Notes
    -----
    ``cudnnSetDropoutDescriptor``. A state belongs to one thread at a time. Its random generators are those of
    a device: another kind of device has others.

    Examples
    --------
    >>> x, state = ct.full((1000,), 1), ct.DropoutState(0.5, seed=1)
    >>> saved = state.save()
    >>> first = ct.dropout(x, state).y.numpy()
    >>> np.array_equal(ct.dropout(x, state).y.numpy(), first)
    False
    >>> state.restore(saved)
    >>> np.array_equal(ct.dropout(x, state).y.numpy(), first)
    True
    """

    def __init__(self, probability: float = 0.5, seed: int = 0, *, stream: Any = None) -> None:
        self.probability = check_probability(probability)
        self.seed = check_seed(seed)
        where = streams.resolve_stream(stream)
        previous = streams.set_device(where.device)
        try:
            ctx = context.current(where)
            nbytes = states_size(ctx)
            self._memory = DeviceArray.new(
                TensorSpec.packed((nbytes,), "uint8"), nbytes, where, "the states of random generators"
            )
            self._descriptor = DropoutDescriptor(
                ctx, self.probability, self._memory.pointer, nbytes, self.seed
            )
            self._memory.after_write(where)
        finally:
            streams.restore_device(previous)
        self._calls = BoundedDict(256)

    @property
    def device(self) -> int:
        """The device whose dice these are."""
        return self._memory.device

    def save(self) -> np.ndarray[Any, Any]:
        """Copy the present state to the host, and wait for it.

        Returns
        -------
        numpy.ndarray of uint8, for :meth:`restore`
        """
        return self._memory.numpy()

    def restore(self, saved: Any) -> None:
        """Set the state back to one that was saved, on this kind of device and by this cuDNN.

        Parameters
        ----------
        saved : array of uint8
            What :meth:`save` gave.

        Raises
        ------
        ValueError
            It is not of the same length, or no bytes.
        """
        import numpy as np

        given = np.asarray(saved).reshape(-1)
        if given.dtype.kind not in "iu" or not ((given >= 0) & (given < 256)).all():
            raise ValueError("a saved state is bytes, numbers from 0 to 255")
        source = np.ascontiguousarray(given, np.uint8)
        if source.size != self._memory.size:
            raise ValueError(f"a saved state of {source.size:,} bytes; this one has {self._memory.size:,}")
        where = streams.resolve_stream(None, self.device)
        previous = streams.set_device(where.device)
        try:
            self._memory.before_write(where)
            memories.copy_from_host(self._memory.pointer, source, where)
            self._memory.after_write(where)
        finally:
            streams.restore_device(previous)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a DropoutState is dice on a device, and cannot be copied or pickled; save() its state"
        )

    def __repr__(self) -> str:
        return f"<DropoutState of {self.probability}, seed {self.seed}, device {self.device}>"


def dropout(x: Any, state: DropoutState, *, out: Any = None, stream: Any = None) -> Dropout:
    """Drop elements at random, and divide the others by the probability that they stay.

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    state : DropoutState
        The dice, which are thrown once for each element.
    out : device array, shape and dtype of x, optional
        Where the result goes. It may be x itself.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    Dropout
        ``y``, shape and dtype of x, or ``out``; and ``mask`` for :func:`dropout_backward`.

    Raises
    ------
    TypeError
        An operand is not on the device, its dtype is none of the four, or ``state`` no state.
    ValueError
        The state is of another device, or ``out`` does not fit.
    NotSupportedError
        cuDNN has no way to compute it.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnDropoutForward``.

    The same seed and the same calls drop the same elements, from run to run, on one kind of device.

    Examples
    --------
    >>> x = ct.full((1000,), 1)
    >>> y, mask = ct.dropout(x, ct.DropoutState(0.5, seed=7))
    >>> np.unique(y.numpy())
    array([0., 2.], dtype=float32)
    """
    where = stream_of(x, "x", stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        _check_state(state, ctx)
        array = as_operand(x, "x", where)
        result = None if out is None else as_operand(out, "out", where, written=True)
        call, order = _forward(ctx, state, array.spec, None if result is None else result.spec)
        if call.pack:
            array = contiguous(array, where)
        made = run(ctx, call, (array,), (result, None, state._memory), 1, 0)
        return Dropout(made[0] if out is None else out, DropoutMask(made[1], order, state))
    finally:
        streams.restore_device(previous)


def dropout_backward(
    dy: Any, mask: DropoutMask, state: DropoutState, *, out: Any = None, stream: Any = None
) -> Any:
    """Compute the gradient of :func:`dropout`: what was dropped gets none, the rest is divided as in it.

    Parameters
    ----------
    dy : device array, shape and dtype of the x of the dropout
    mask : DropoutMask
        What :func:`dropout` gave with y.
    state : DropoutState
        That of the dropout; it is not changed.
    out, stream
        As in :func:`dropout`; ``out`` may be dy itself.

    Returns
    -------
    DeviceArray, shape and dtype of dy; or ``out``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dropout`; ValueError also where the mask is of another state, shape or dtype.

    Notes
    -----
    ``cudnnDropoutBackward``.

    Each element is computed by itself: the same bits from run to run.

    Examples
    --------
    >>> x, state = ct.full((1000,), 1), ct.DropoutState(0.5, seed=7)
    >>> y, mask = ct.dropout(x, state)
    >>> np.array_equal(ct.dropout_backward(x, mask, state).numpy(), y.numpy())
    True
    """
    if not isinstance(mask, DropoutMask):
        raise TypeError(f"mask must be what dropout gave, not {type(mask).__name__}")
    where = stream_of(dy, "dy", stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        _check_state(state, ctx)
        if mask.state is not state:
            raise ValueError(f"the mask is of {mask.state}, not of {state}")
        array = as_operand(dy, "dy", where)
        result = None if out is None else as_operand(out, "out", where, written=True)
        call = _backward(state, array.spec, mask, None if result is None else result.spec)
        if call.pack:
            array = contiguous(array, where)
        made = run(ctx, call, (array, mask.bits), (result,), 1, 0)
        return made[0] if out is None else out
    finally:
        streams.restore_device(previous)


def _forward(
    ctx: Context, state: DropoutState, x: TensorSpec, out: TensorSpec | None
) -> tuple[PreparedCall, TensorSpec]:
    key = ("forward", x, out)
    found: tuple[PreparedCall, TensorSpec] | None = state._calls.get(key)
    if found is None:
        one_dtype("dropout", x=x.dtype)
        check_writable(out)
        given, order = representable(x), TensorSpec.packed(x.shape, x.dtype, nearest_layout(x))
        y = result_spec(x.shape, given, out=out)
        bits = TensorSpec.packed((mask_size(ctx, order) if x.size else 0,), "uint8")
        states = state._memory.spec
        plan = (
            legacy_dropout("cudnnDropoutForward", state._descriptor, given, y, bits, order, (states,))
            if x.size
            else ZeroOrScale(y)
        )
        call = PreparedCall.of(
            f"dropout of {x}",
            (given,),
            (y, bits, states),
            SinglePlan(plan),
            pack=given != x,
            in_place=True,
            what="a dropout",
        )
        found = state._calls[key] = (call, order)
    return found


def _backward(state: DropoutState, dy: TensorSpec, mask: DropoutMask, out: TensorSpec | None) -> PreparedCall:
    key = ("backward", dy, mask.like, mask.bits.spec, out)
    call: PreparedCall | None = state._calls.get(key)
    if call is None:
        like = mask.like
        if dy.shape != like.shape or dy.dtype != like.dtype:
            raise ValueError(f"dy is {dy}; the mask is of a dropout of {like}")
        check_writable(out)
        given, bits = representable(dy), mask.bits.spec
        dx = result_spec(dy.shape, given, like, out=out)
        plan = (
            legacy_dropout("cudnnDropoutBackward", state._descriptor, given, dx, bits, like)
            if dy.size
            else ZeroOrScale(dx)
        )
        call = state._calls[key] = PreparedCall.of(
            f"the gradient of dropout of {dy}",
            (given, bits),
            (dx,),
            SinglePlan(plan),
            pack=given != dy,
            in_place=True,
            what="the gradient of a dropout",
        )
    return call


def _check_state(state: Any, ctx: Context) -> None:
    if not isinstance(state, DropoutState):
        raise TypeError(f"state must be a ct.DropoutState, not {type(state).__name__}")
    if state.device != ctx.device:
        raise ValueError(f"the state is of device {state.device}; the operation runs on device {ctx.device}")


def check_seed(seed: Any) -> int:
    """Return the seed of dice as an int, or raise."""
    number = as_int(seed, "seed")
    if not 0 <= number < 2**64:
        raise ValueError(f"seed must be between 0 and 2**64 - 1, got {seed}")
    return number
