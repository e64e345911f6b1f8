"""The gradients of a recurrent network, from the reserve of a training pass."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...array import DeviceArray
from ...shapes.parse import as_bool
from ...typing import ArrayLike, StreamLike
from .network import HasNetwork
from .reserve import RNNReserve

__all__ = ["RNNDataGradients", "RNNGradients", "result_slots"]


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


class RNNGradients(HasNetwork):
    """The methods of an RNN that compute gradients."""

    def backward_data(
        self,
        dy: ArrayLike | None,
        reserve: RNNReserve | None,
        dhy: ArrayLike | None = None,
        dcy: ArrayLike | None = None,
        *,
        out: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
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
        stream : optional

        Returns
        -------
        RNNDataGradients
            ``dx``, like x, 0 past the end of a sequence; ``dh0``, and ``dc0``, None without cells.

        Raises
        ------
        TypeError
            The reserve is missing, or a gradient is not on the device or of another dtype.
        ValueError
            The reserve belongs to another network or was used before, or a shape does not fit.
        NotInitializedError
            A CUDA graph is being captured on the stream.
        NotSupportedError, AllocationError
            As in :meth:`forward`.

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
        given = {"dy": dy, "dhy": dhy, "dcy": dcy}
        given = {name: array for name, array in given.items() if array is not None}
        outs = result_slots(out, ("dx", "dh0", "dc0"), has_cells=self.spec.has_cells)
        kept = _as_reserve(reserve)
        results = kept._compute("backward_data", self, self._cache, given, (), outs, stream)
        dx, dh0, *dc0 = results
        return RNNDataGradients(dx, dh0, dc0[0] if dc0 else None)

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
        stream : optional

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network; or ``out`` as one
            ``split_params`` returns views of its parts.

        Raises
        ------
        TypeError
            The reserve is missing, or ``out`` is not on the device or of another dtype.
        ValueError
            The reserve belongs to another network, was used before, or :meth:`backward_data` was not called;
            ``out`` does not fit, or is missing with ``add``.
        NotInitializedError
            A CUDA graph is being captured on the stream.
        NotSupportedError, AllocationError
            As in :meth:`forward`.

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
        kept = _as_reserve(reserve)
        return kept._compute("backward_weights", self, self._cache, {}, (add,), (out,), stream)[0]


def result_slots(out: Any, names: tuple[str, ...], *, has_cells: bool) -> tuple[Any, ...]:
    """Return the array given for each result by ``out``: one array for the first, or a tuple for all."""
    outs = tuple(out) if isinstance(out, tuple | list) else (out, None, None)
    if len(outs) != len(names):
        raise ValueError(f"out has {len(outs)} arrays; the results are {', '.join(names)}")
    if has_cells:
        return outs
    if outs[2] is not None:
        raise ValueError(f"out has {names[2]}, but the network has no cells; only 'lstm' has")
    return outs[:2]


def _as_reserve(reserve: Any) -> RNNReserve:
    if not isinstance(reserve, RNNReserve):
        hint = "; forward gives one with training=True" if reserve is None else ""
        raise TypeError(f"reserve must be an RNNReserve, not {type(reserve).__name__}{hint}")
    return reserve
