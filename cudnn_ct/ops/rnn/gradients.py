"""The gradients of a recurrent network, and the reserve of a training pass that they are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from ... import array_shapes
from ..._hints import methods_of
from ...array import DeviceArray
from ...errors import AllocationError, BadParamError, NotInitializedError, NotSupportedError, not_on_shapes
from ...shapes.checks import as_bool, result_slots
from ...typing import ArrayLike, OutLike, StreamLike
from .._call import execute
from .._documented import documented
from .._operands import present
from .network import HasNetwork, RNNState
from .operations import BACKWARD_DATA, BACKWARD_WEIGHTS

_GRADIENTS = {"backward_data": BACKWARD_DATA, "backward_weights": BACKWARD_WEIGHTS}

# Errors before anything is enqueued: the reserve is unchanged.
_UNCHANGED = (NotSupportedError, BadParamError, NotInitializedError, AllocationError, ValueError, TypeError)


class RNNReserve:
    """Ties a training pass of an :class:`RNN` to its gradients, each of which can be computed once.

    :meth:`RNN.forward` returns one; users do not construct it. It keeps the operands and cuDNN's reserve
    space until both are computed, ``backward_data`` first.

    Attributes
    ----------
    device : int
    nbytes : int
        Bytes of cuDNN's reserve space; 0 once it is used up.
    exhausted : tuple of str
        The gradients that were computed.
    """

    __slots__ = ("__weakref__", "_algorithm", "_call", "_memory", "_owner", "arrays", "device", "exhausted")

    def __init__(self, owner: HasNetwork, state: RNNState) -> None:
        if array_shapes.active():
            raise not_on_shapes("the reserve of a training pass is memory of a GPU", "pass training=False")
        self._owner = owner
        self._call = state.call
        self._algorithm = state.algorithm
        self._memory = state.memory
        names = [name for name, _ in self._call.problem.operands]
        self.arrays: dict[str, DeviceArray] = dict(zip(names, state.operands, strict=True))
        self.arrays["y"] = state.results[0]
        self.device = self.arrays["y"].device
        self.exhausted: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of cuDNN's reserve space, without the operands."""
        return 0 if self._memory is None else self._memory.size

    def describe(self) -> str:
        """Return what was computed, and by which algorithm."""
        return f"{self._call.problem.problem}\n{self._call.selected.describe()}"

    def _compute(
        self,
        gradient: str,
        owner: HasNetwork,
        given: dict[str, Any],
        params: tuple[Any, ...],
        outs: tuple[Any, ...],
        stream: Any,
    ) -> Sequence[DeviceArray]:
        """Compute a gradient; the reserve stays as it was if nothing was enqueued."""
        self._check_use(gradient, owner)
        operands = self.arrays | given
        names, arrays = tuple(operands), tuple(operands.values())
        params = (self._call.problem, self._algorithm, *params)
        state = RNNState(owner._cache, training=True, memory=self._memory)
        before = self.exhausted
        self.exhausted = (*before, gradient)
        try:
            results = execute(
                _GRADIENTS[gradient], names, arrays, params, outs=outs, stream=stream, state=state
            )
        except _UNCHANGED:
            self.exhausted = before
            raise
        if len(self.exhausted) == len(_GRADIENTS):
            self._memory = None
            self.arrays.clear()
        return results

    def _check_use(self, gradient: str, owner: Any) -> None:
        if self._owner is not owner:
            raise ValueError(f"the reserve is of {self._owner!r}, not of this {owner!r}")
        if gradient in self.exhausted:
            raise ValueError(
                f"the reserve was used by {gradient} before, and changed; "
                "run forward with training=True again"
            )
        if gradient == "backward_weights" and "backward_data" not in self.exhausted:
            raise ValueError(
                "backward_weights reads what backward_data wrote to the reserve; call that first"
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "RNNReserve cannot be copied or pickled: it holds device memory of an unfinished training step"
        )

    def __repr__(self) -> str:
        state = f"used by {' and '.join(self.exhausted)}" if self.exhausted else "fresh"
        return f"<RNNReserve of {self._call.problem.problem}; {self.nbytes:,} bytes, {state}>"


class RNNDataGradients(NamedTuple):
    """Gradients with regard to the input and to the states before it.

    Attributes
    ----------
    dx, dh0 : DeviceArray, or the arrays that were given as ``out``
    dc0 : the same; None for a mode without cells
    """

    dx: DeviceArray
    dh0: DeviceArray
    dc0: DeviceArray | None


@methods_of("RNN")
class RNNGradients(HasNetwork):
    """The methods of an RNN that compute gradients."""

    @documented()
    def backward_data(
        self,
        dy: ArrayLike | None,
        reserve: RNNReserve | None,
        dhy: ArrayLike | None = None,
        dcy: ArrayLike | None = None,
        *,
        out: OutLike | None = None,
        stream: StreamLike | None = None,
    ) -> RNNDataGradients:
        """Compute the gradients of a training pass with regard to its input and first states.

        Parameters
        ----------
        dy : device array, shape and dtype of y; or None
            Values past the end of a sequence are not read.
        reserve : RNNReserve
            The one that ``forward(..., training=True)`` returned; it is used for this once.
        dhy, dcy : device arrays, as hy and cy, optional
            Gradients that are None are zero.
        out : device array, or a tuple (dx, dh0, dc0), optional
            Arrays for the results, in C order; None in the tuple for a new one.

        Returns
        -------
        RNNDataGradients
            ``dx``, like x, 0 past the end of a sequence; ``dh0``, and ``dc0``, None without cells.

        Raises
        ------
        ValueError
            The reserve belongs to another network or was used before, or a shape does not fit.
        NotInitializedError
            A CUDA graph is being captured on the stream.

        Notes
        -----
        ``cudnnRNNBackwardData_v8``. The same bits from run to run as far as those of :meth:`forward` are.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds its inputs
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, _, _, reserve = rnn.forward(x, w, training=True)
        >>> dx, dh0, _ = rnn.backward_data(ct.asarray([[[1]], [[1]], [[1]]], "float32"), reserve)
        >>> dx.numpy().ravel()
        array([3., 2., 1.], dtype=float32)
        """
        given = present(dy=dy, dhy=dhy, dcy=dcy)
        outs = rnn_result_slots(out, RNNDataGradients._fields, has_cells=self.spec.has_cells)
        dx, dh0, *dc0 = _as_reserve(reserve)._compute("backward_data", self, given, (), outs, stream)
        return RNNDataGradients(dx, dh0, dc0[0] if dc0 else None)

    @documented()
    def backward_weights(
        self,
        reserve: RNNReserve | None,
        *,
        out: ArrayLike | None = None,
        add: bool = False,
        stream: StreamLike | None = None,
    ) -> DeviceArray:
        """Compute the gradient of a training pass with regard to the weights; after :meth:`backward_data`.

        Parameters
        ----------
        reserve : RNNReserve
            It is used for this once, and releases its memory then.
        out : device array, shape (weight_size,), dtype of the network, optional
            The array for the result.
        add : bool
            Add to the values of ``out``, which is then required.

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network; or ``out`` as one
            ``split_params`` returns views of its parts.

        Raises
        ------
        ValueError
            The reserve belongs to another network, was used before, or :meth:`backward_data` was not called;
            ``out`` does not fit, or is missing with ``add``.
        NotInitializedError
            A CUDA graph is being captured on the stream.

        Notes
        -----
        ``cudnnRNNBackwardWeights_v8``, which always adds: without ``add`` the result is set to zero first.
        The same bits from run to run as far as those of :meth:`forward` are.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds its inputs
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, _, _, reserve = rnn.forward(x, w, training=True)
        >>> gradients = rnn.backward_data(ct.asarray([[[1]], [[1]], [[1]]], "float32"), reserve)
        >>> rnn.backward_weights(reserve).numpy()
        array([5.], dtype=float32)
        """
        add = as_bool(add, "add")
        if add and out is None:
            raise ValueError("add=True needs out, the array that it adds to")
        return _as_reserve(reserve)._compute("backward_weights", self, {}, (add,), (out,), stream)[0]


def rnn_result_slots(out: Any, names: tuple[str, ...], *, has_cells: bool) -> tuple[Any, ...]:
    """Return the array given for each result by ``out``; the last one exists for networks with cells only."""
    return result_slots(out, names, absent="" if has_cells else "the network has no cells; only 'lstm' has")


def _as_reserve(reserve: Any) -> RNNReserve:
    if not isinstance(reserve, RNNReserve):
        hint = "; forward gives one with training=True" if reserve is None else ""
        raise TypeError(f"reserve must be an RNNReserve, not {type(reserve).__name__}{hint}")
    return reserve
