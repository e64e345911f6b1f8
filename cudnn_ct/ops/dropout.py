"""Dropout and its gradient, with a random state."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Never, NoReturn

from .. import _lib, array_shapes, context
from .._bindings.types import cudnnDropoutDescriptor_t
from .._handle import NativeHandle
from .._hints import UNSET, corrected
from ..array import DeviceArray
from ..context import Context
from ..cuda import memory as memories
from ..cuda import recording
from ..cuda import stream as streams
from ..descriptors import TensorDescriptor
from ..errors import not_on_shapes
from ..plans.axes import collapse
from ..plans.base import Plan, tensors_of
from ..plans.program import ArgumentTemplate, FunctionPlan, PointerSlot
from ..plans.wrappers import zero_or_scale
from ..shapes.checks import as_int, one_dtype, result_slots, result_spec
from ..shapes.layers import DropoutGradientProblem, DropoutProblem, check_probability
from ..shapes.specs import Outs, Specs, TensorSpec, nearest_layout
from ..typing import ArrayLike, StreamLike
from ._call import execute
from ._documented import documented
from ._implementations import of_problem, with_bfloat16
from ._operation import Operation
from ._state import CallState, OwnedCache

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_CALLS = 256  # that a thread keeps for a state


class DropoutMask(NamedTuple):
    """The elements that a dropout kept, for its gradient.

    Attributes
    ----------
    bits : DeviceArray
        One bit or byte for each element, in cuDNN's format.
    like : TensorSpec
        A contiguous tensor of the shape and dtype of x, in its memory order.
    state : DropoutState
        The random state of the dropout.
    """

    bits: DeviceArray
    like: TensorSpec
    state: DropoutState


class DropoutResult(NamedTuple):
    """The result of a dropout, and the mask that its gradient needs.

    Attributes
    ----------
    y : DeviceArray, or the array that was given as ``out``
    mask : DropoutMask
    """

    y: DeviceArray
    mask: DropoutMask


class DropoutDescriptor(NativeHandle):
    """``cudnnDropoutDescriptor_t`` over the states of random generators, seeded on the context's stream."""

    __slots__ = ()

    def __init__(self, context: Context, probability: float, states: int, nbytes: int, seed: int) -> None:
        pointer, library = cudnnDropoutDescriptor_t(), context.library
        library.cudnnCreateDropoutDescriptor(ctypes.byref(pointer))
        super().__init__(pointer, library.cudnnDestroyDropoutDescriptor)
        try:
            library.cudnnSetDropoutDescriptor(self, context.handle, probability, states, nbytes, seed)
        except BaseException:
            self.close()
            raise


class DropoutState:
    """Random state of dropout on one device: the same seed and the same calls give the same masks.

    Calls are the same if the shapes, dtypes and memory order of their operands are.

    Parameters
    ----------
    probability : float, at least 0 and less than 1
        The probability that an element is dropped.
    seed : int
        From 0 to 2**64 - 1.
    stream : optional
        The stream, and so the device, on which the state is seeded; by default that of ``ct.use``.

    Raises
    ------
    TypeError, ValueError
        The probability or the seed is invalid.
    NotInitializedError, AllocationError
        No device is available, or its memory ran out.

    Notes
    -----
    ``cudnnSetDropoutDescriptor``. A state belongs to one thread at a time. Its random generators depend on
    the kind of device.

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

    def __init__(self, probability: float = 0.5, seed: int = 0, *, stream: StreamLike | None = None) -> None:
        self.probability = check_probability(probability)
        self.seed = check_seed(seed)
        where = streams.resolve_stream(stream)
        with streams.on_device(where.device):
            ctx = context.current(where)
            size = ctypes.c_size_t()
            ctx.library.cudnnDropoutGetStatesSize(ctx.handle, ctypes.byref(size))
            states = TensorSpec.packed((size.value,), "uint8")
            self._memory = DeviceArray.new(states, states.size, where, "the states of random generators")
            with ctx.working(where):
                self._descriptor = DropoutDescriptor(
                    ctx, self.probability, self._memory.pointer, states.size, self.seed
                )
        self._calls = OwnedCache(MAX_CALLS)

    @property
    def device(self) -> int:
        """The device of the state."""
        return self._memory.device

    def save(self) -> npt.NDArray[np.uint8]:
        """Copy the present state to the host, and wait for it.

        Returns
        -------
        numpy.ndarray of uint8, for :meth:`restore`
        """
        return self._memory.numpy()

    def restore(self, saved: npt.ArrayLike) -> None:
        """Restore a state that was saved on the same kind of device and by the same cuDNN.

        Parameters
        ----------
        saved : array of uint8
            A result of :meth:`save`.

        Raises
        ------
        ValueError
            It has another length, or values that are not bytes.
        """
        import numpy as np

        given = np.asarray(saved).reshape(-1)
        if given.dtype.kind not in "iu" or not ((given >= 0) & (given < 256)).all():
            raise ValueError(f"saved has invalid values: got {given.dtype} {given}, expected bytes, 0 to 255")
        source = np.ascontiguousarray(given, np.uint8)
        if source.size != self._memory.size:
            raise ValueError(f"saved does not fit: got {source.size:,} bytes, expected {self._memory.size:,}")
        where = streams.resolve_stream(None, self.device)
        with streams.on_device(where.device):
            self._memory.before_write(where)
            memories.copy_from_host(self._memory.pointer, source, where)
            self._memory.after_write(where)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("DropoutState holds device RNG state and cannot be copied or pickled; use save()")

    def __repr__(self) -> str:
        return f"<DropoutState of {self.probability}, seed {self.seed}, device {self.device}>"


@documented()
def dropout(
    x: ArrayLike,
    state: DropoutState,
    *more: Never,
    out: ArrayLike | tuple[ArrayLike | None, DropoutMask | None] | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DropoutResult:
    """Drop elements at random, and divide the others by the probability that they stay.

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    state : DropoutState
        The random state, which each call changes.
    out : device array, shape and dtype of x; or a pair (y, mask); optional
        The array for y, which may be x itself. In a pair, the mask of an earlier dropout of this state is
        overwritten; None stands for a new one.

    Returns
    -------
    DropoutResult
        ``y``, shape and dtype of x, or ``out`` as one; and ``mask`` for :func:`dropout_backward`.

    Notes
    -----
    ``cudnnDropoutForward``. The same seed and the same calls drop the same elements, from run to run, on one
    kind of device.

    Examples
    --------
    >>> x = ct.full((1000,), 1)
    >>> y, mask = ct.dropout(x, ct.DropoutState(0.5, seed=7))
    >>> np.unique(y.numpy())
    array([0., 2.], dtype=float32)
    """
    if more or unknown or x is UNSET or state is UNSET:
        return corrected(dropout, locals())
    _check_state(state)
    recording.refuse("dropout, whose random state each call changes,")
    if array_shapes.active():
        raise not_on_shapes("the mask of a dropout is memory of a GPU")
    y_out, mask = result_slots(out, DropoutResult._fields)
    if mask is not None:
        _check_mask(mask, state)
    outs, done = (y_out, None if mask is None else mask.bits, state._memory), CallState(state._calls)
    y, bits, _ = execute(FORWARD, ("x",), (x,), (state._descriptor,), outs=outs, stream=stream, state=done)
    problem = done.call.problem
    like = TensorSpec.packed(problem.x.shape, problem.x.dtype, problem.layout)
    return DropoutResult(y, DropoutMask(bits, like, state))


@documented(dropout)
def dropout_backward(
    dy: ArrayLike,
    mask: DropoutMask,
    state: DropoutState,
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of :func:`dropout`: zero for dropped elements, divided as in it for the others.

    Parameters
    ----------
    dy : device array, shape and dtype of the x of the dropout
    mask : DropoutMask
        The mask that :func:`dropout` returned with y.
    state : DropoutState
        The state of the dropout; it is not changed.
    out : device array, shape and dtype of dy, optional
        Destination of the result, which may be dy itself.

    Returns
    -------
    DeviceArray, shape and dtype of dy; or ``out`` as one

    Notes
    -----
    ``cudnnDropoutBackward``. The same bits from run to run.

    Examples
    --------
    >>> x, state = ct.full((1000,), 1), ct.DropoutState(0.5, seed=7)
    >>> y, mask = ct.dropout(x, state)
    >>> np.array_equal(ct.dropout_backward(x, mask, state).numpy(), y.numpy())
    True
    """
    if more or unknown or dy is UNSET or mask is UNSET or state is UNSET:
        return corrected(dropout_backward, locals())
    _check_state(state)
    _check_mask(mask, state)
    operands, params = (dy, mask.bits), (mask.like, state._descriptor)
    done = CallState(state._calls)
    return execute(BACKWARD, ("dy", "mask"), operands, params, outs=(out,), stream=stream, state=done)[0]


def _problem(specs: Specs, outs: Outs, descriptor: DropoutDescriptor) -> DropoutProblem:
    x, (out, given, states) = specs["x"], outs
    one_dtype("dropout", x=x.dtype)
    assert states is not None
    layout = nearest_layout(x)
    contiguous = TensorSpec.packed(x.shape, x.dtype, layout)
    size = ctypes.c_size_t()
    if x.size:
        wide = contiguous._replace(dtype="float32") if x.dtype == "bfloat16" else contiguous
        _lib.load().cudnnDropoutGetReserveSpaceSize(_as_one_axis(wide), ctypes.byref(size))
    mask = TensorSpec.packed((size.value,), "uint8")
    if given is not None and given != mask:
        raise ValueError(f"mask of out does not fit: got {given.size:,} bytes, expected {mask.size:,}")
    return DropoutProblem(x, result_spec(x.shape, x, out=out), mask, states, layout, descriptor)


def _gradient_problem(
    specs: Specs, outs: Outs, like: TensorSpec, descriptor: DropoutDescriptor
) -> DropoutGradientProblem:
    dy = specs["dy"]
    if dy.shape != like.shape or dy.dtype != like.dtype:
        raise ValueError(f"dy does not fit the mask: got {dy}, expected shape and dtype of {like}")
    dx = result_spec(dy.shape, dy, like, out=outs[0])
    return DropoutGradientProblem(dy, specs["mask"], dx, nearest_layout(like), descriptor)


def _as_one_axis(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(*collapse([spec], [range(len(spec.shape))]))


def _plan(
    problem: DropoutProblem | DropoutGradientProblem, function: str, source: str, target: str
) -> Plan | None:
    """Return a plan of a C function from one tensor to another, both in the memory order of the mask."""
    x, y = getattr(problem, source), getattr(problem, target)
    if not y.size:
        return zero_or_scale(y)
    if problem.layout not in x.layouts or problem.layout not in y.layouts:
        return None
    tensor, mask = _as_one_axis(x), (PointerSlot("mask"), problem.mask.size)
    arguments = (problem.descriptor, tensor, PointerSlot(source), tensor, PointerSlot(target), *mask)
    template = ArgumentTemplate(arguments, tensors_of(problem))

    # The calls have no factors.
    def run(context: Context, pointers: Sequence[int], *_: float) -> None:
        getattr(context.library, function)(context.handle, *template.filled(pointers))

    return FunctionPlan(function, run)


FORWARD = Operation(
    "a dropout",
    _problem,
    with_bfloat16(of_problem(partial(_plan, function="cudnnDropoutForward", source="x", target="y"))),
    in_place=True,
    written=("out", "mask", "state"),
)
BACKWARD = Operation(
    "the gradient of a dropout",
    _gradient_problem,
    with_bfloat16(of_problem(partial(_plan, function="cudnnDropoutBackward", source="dy", target="dx"))),
    in_place=True,
)


def _check_state(state: Any) -> None:
    if not isinstance(state, DropoutState):
        raise TypeError(f"state must be a ct.DropoutState, not {type(state).__name__}")


def _check_mask(mask: Any, state: DropoutState) -> None:
    if not isinstance(mask, DropoutMask):
        raise TypeError(f"mask must be a ct.DropoutMask, not {type(mask).__name__}")
    if mask.state is not state:
        raise ValueError(f"mask belongs to another state: got a mask of {mask.state}, expected {state}")


def check_seed(seed: Any) -> int:
    """Return the seed of a random state as an int, or raise."""
    number = as_int(seed, "seed")
    if not 0 <= number < 2**64:
        raise ValueError(f"seed must be between 0 and 2**64 - 1, got {seed}")
    return number
