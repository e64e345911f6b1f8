"""The weights of a recurrent network in one piece of device memory: put in, taken out, seen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ...array import DeviceArray
from ...array_creation import NO_NUMBERS, as_operand
from ...cuda import stream as streams
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...shapes.parse import as_int
from ...shapes.rnn import RNNSpec
from ...shapes.rnn_params import rnn_offsets, rnn_parameters, rnn_weight_size
from ...shapes.rnn_weights import arrange_weights, from_torch, to_torch, with_prefix
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, StreamLike
from .._operands import stream_of
from ..tensor import transform

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RNNWeights", "as_index", "check_weights"]


class RNNWeights:
    """The weights of a network in one array: packed, split into views, and converted to and from torch."""

    @property
    @abstractmethod
    def spec(self) -> RNNSpec:
        """The network as a value."""

    def pack_params(
        self, weights: Mapping[str, object] | Sequence[object], *, stream: StreamLike | None = None
    ) -> DeviceArray:
        """Copy parameters into one array of ``weight_size`` items.

        Parameters
        ----------
        weights : mapping by names, or sequence in the order, of ``problem.rnn_parameters(rnn.spec)``
            NumPy arrays of real numbers, or arrays on the device of the network's dtype; matrices of shape
            (out, in), biases of shape (out,).
        stream : optional

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network

        Raises
        ------
        ValueError
            A parameter is missing, unknown or of another shape.
        TypeError
            One on the device is of another dtype, or one on the host is not of real numbers.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> names = ("l0.W_hidden", "l0.R_hidden", "l0.bW_hidden", "l0.bR_hidden")
        >>> rnn.pack_params(dict(zip(names, map(np.array, ([[2]], [[4]], [3], [5]))))).numpy()
        array([2., 4., 3., 5.], dtype=float32)
        """
        return pack(self.spec, weights, streams.resolve_stream(stream))

    def split_params(self, w: ArrayLike, layer: int, direction: int = 0) -> dict[str, DeviceArray]:
        """See the parameters of one layer in one direction: writable views of the weights, without a copy.

        Parameters
        ----------
        w : device array, shape (weight_size,), dtype of the network
        layer : int, from 0
        direction : int
            0 for forwards, 1 for backwards.

        Returns
        -------
        dict from names to DeviceArray
            In the order of cuDNN's linLayerIDs, a matrix before its bias. A matrix has shape (out, in).

        Raises
        ------
        ValueError
            The layer does not exist, or w has another size.

        Notes
        -----
        Each view shares the stream order of the weights. The tests compare the offsets with those that
        ``cudnnGetRNNWeightParams`` returns for each algorithm.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> rnn.split_params(ct.asarray([2, 4, 3, 5], "float32"), 0)["l0.R_hidden"].numpy()
        array([[4.]], dtype=float32)
        """
        array = as_operand(w, "w", stream_of(w, "w", None))
        return split(self.spec, array, layer, direction)

    def from_torch(
        self, state_dict: Mapping[str, object], prefix: str = "", *, stream: StreamLike | None = None
    ) -> DeviceArray:
        """Take the weights of a ``torch.nn.RNN``, ``LSTM`` or ``GRU``; torch itself is not needed.

        Parameters
        ----------
        state_dict : mapping from torch's names to tensors or NumPy arrays
        prefix : str
            What stands before the names, such as ``"encoder."``; other names are passed over.
        stream : optional

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network

        Raises
        ------
        TypeError
            ``state_dict`` is not a mapping, ``prefix`` is not a string, or a value is not an array of real
            numbers.
        ValueError
            A name is missing or unknown, a shape does not fit, or the biases of a GRU cannot be made one.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)  # of a torch.nn.RNN(1, 1): rnn.from_torch(module.state_dict())
        >>> names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        >>> rnn.from_torch(dict(zip(names, map(np.array, ([[2]], [[4]], [3], [5]))))).numpy()
        array([2., 4., 3., 5.], dtype=float32)
        """
        own = with_prefix(state_dict, prefix)
        return self.pack_params(from_torch(host_parts(own), self.spec, prefix=prefix), stream=stream)

    def to_torch(self, w: ArrayLike, prefix: str = "") -> dict[str, np.ndarray[Any, Any]]:
        """Copy the weights to the host as torch names and joins them.

        Parameters
        ----------
        w : device array, shape (weight_size,), dtype of the network
        prefix : str
            Put before each name.

        Returns
        -------
        dict from torch's names to NumPy arrays
            Of the dtype of the network, but float32 for bfloat16, which ``torch.from_numpy`` does not take.

        Raises
        ------
        ValueError
            The network has skip input, which torch has not.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> rnn.to_torch(ct.asarray([2, 4, 3, 5], "float32"))["weight_hh_l0"]
        array([[4.]], dtype=float32)
        """
        array = as_operand(w, "w", stream_of(w, "w", None))
        return to_torch(to_host(self.spec, array), self.spec, prefix=prefix)


def check_weights(spec: RNNSpec, w: TensorSpec) -> None:
    """Raise unless an array can hold all parameters of a network."""
    items = rnn_weight_size(spec)
    if w.shape != (items,):
        raise ValueError(
            f"w has shape {w.shape}; the weights of this network are one axis, ({items},): {spec}"
        )


def pack(spec: RNNSpec, weights: Mapping[str, object] | Sequence[object], stream: Stream) -> DeviceArray:
    """Copy parameters into one new array; those on the host are cast to the dtype of the network."""
    import numpy as np

    dtype = DTYPES[spec.dtype]
    parts = arrange_weights(spec, weights)
    flat, later = np.zeros(rnn_weight_size(spec), dtype.numpy), []
    for row, start, part in zip(rnn_parameters(spec), rnn_offsets(spec), parts, strict=True):
        if isinstance(part, np.ndarray):
            flat[start : start + row.size] = _real(part, row.name).astype(dtype.numpy).reshape(-1)
            continue
        array = as_operand(part, row.name, stream)
        if array.spec.dtype != spec.dtype:
            raise TypeError(f"{row.name} is {array.spec.dtype}; the network is {spec.dtype}")
        later.append((array, start, row.shape))
    w = DeviceArray.from_host(flat, dtype, "nchw", stream)
    for array, start, shape in later:
        transform(array, out=_view(w, start, shape), stream=stream)
    return w


def split(spec: RNNSpec, w: DeviceArray, layer: int, direction: int) -> dict[str, DeviceArray]:
    """Views of the parameters of a layer in one direction, by name, in the order of cuDNN's linLayerIDs."""
    check_weights(spec, w.spec)
    if "nchw" not in w.spec.layouts:
        raise ValueError(f"w has stride {w.spec.strides}; pass contiguous weights")
    wanted = as_index(spec.num_layers, layer, "layer") * spec.directions
    wanted += as_index(spec.directions, direction, "direction")
    rows = zip(rnn_parameters(spec), rnn_offsets(spec), strict=True)
    return {row.name: _view(w, start, row.shape) for row, start in rows if row.pseudo_layer == wanted}


def to_host(spec: RNNSpec, w: DeviceArray) -> dict[str, Any]:
    """All parameters by name, as NumPy arrays that torch takes: it has no bfloat16 of NumPy's."""
    check_weights(spec, w.spec)
    flat = w.numpy()
    if spec.dtype == "bfloat16":
        flat = flat.astype("float32")
    rows = zip(rnn_parameters(spec), rnn_offsets(spec), strict=True)
    return {row.name: flat[start : start + row.size].reshape(row.shape) for row, start in rows}


def host_parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a state as NumPy arrays, whatever library they are of."""
    return {name: _real(_on_host(value), name) for name, value in state.items()}


def _on_host(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    for step in ("detach", "cpu"):
        value = getattr(value, step, lambda value=value: value)()
    if not hasattr(value, "numpy"):
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    try:
        return value.numpy()
    except TypeError:  # a dtype that NumPy has not, such as bfloat16
        return value.float().numpy()


def _real(array: Any, name: str) -> Any:
    """The array itself; raise for one that has no real numbers, which a cast would make of it."""
    if array.dtype.kind in NO_NUMBERS:
        raise TypeError(f"{name} is {array.dtype}; weights are real numbers")
    return array


def as_index(most: int, value: Any, name: str) -> int:
    """An int that counts one of ``most`` things from 0."""
    n = as_int(value, name)
    if not 0 <= n < most:
        raise ValueError(f"{name} must be from 0 to {most - 1}, got {n}")
    return n


def _view(w: DeviceArray, start: int, shape: tuple[int, ...]) -> DeviceArray:
    assert start + prod(shape) <= w.size
    view = w.view_as(TensorSpec.packed(shape, w.spec.dtype))
    view.pointer += start * w.itemsize
    return view
