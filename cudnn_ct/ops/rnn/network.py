"""The parts of an RNN that its calls share: specs, algorithm, dropout states, weights; state of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._algorithm_names import POLICIES, SYNONYMS
from ..._caches import CallCache
from ..._config import config
from ..._hints import methods_of
from ...array import DeviceArray
from ...array_creation import NO_NUMBERS, as_operand
from ...context import Context
from ...cuda import stream as streams
from ...dtypes import DTYPES
from ...errors import NotInitializedError
from ...plans.base import AlgoRequest, Candidate, request
from ...shapes import rnn as rules
from ...shapes.checks import as_int
from ...shapes.rnn import RNN_ALGOS, RNNParameter, RNNSpec
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, StreamLike
from .._call import NO_VARIANT
from .._documented import documented
from .._operands import stream_of
from .._operation import PreparedCall
from .._state import CallState, OwnedCache
from ..dropout import DropoutState
from ..tensor import transform

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Network:
    """Part of the key of each call of an RNN, by identity. A copy begins without dropout states."""

    def __init__(self, specs: Mapping[bool, RNNSpec], algo: str | Candidate | None, seed: int) -> None:
        self._specs, self.algo, self.seed = specs, algo, seed
        self.has_cells = self.spec.has_cells
        self.has_dropout = self.spec.dropout > 0 and self.spec.num_layers > 1
        self._dropout_states: dict[int, DropoutState] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self._specs, self.algo, self.seed)

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._specs[config.allow_tf32]

    @property
    def request(self) -> AlgoRequest:
        """The request for an algorithm, by the settings for a network that names none."""
        algo = self.algo
        if algo is None:  # settings may name an algorithm of convolutions, which means nothing here
            known = (*POLICIES, *SYNONYMS, *RNN_ALGOS)
            algo = config.algo if config.algo in known else "heuristic"
        return request(algo, config.deterministic, config.workspace_limit, False)

    def dropout_state(self, stream: streams.Stream) -> DropoutState:
        """Return the dropout state of the device, made when it is first needed."""
        if (found := self._dropout_states.get(stream.device)) is None:
            made = DropoutState(self.spec.dropout, self.seed, stream=stream)
            found = self._dropout_states.setdefault(stream.device, made)
        return found


class HasNetwork:
    """The base of the parts of an RNN."""

    _network: Network
    _cache: OwnedCache

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._network.spec


class RNNState(CallState):
    """The state of a pass; ``network`` is given for a training pass, ``memory`` for a gradient."""

    __slots__ = ("_network", "_training", "algorithm", "dropout", "memory")

    def __init__(
        self,
        cache: OwnedCache,
        *,
        training: bool = False,
        network: Network | None = None,
        memory: DeviceArray | None = None,
    ) -> None:
        super().__init__(cache, () if memory is None else (memory,))
        self._network, self._training, self.memory = network, training, memory
        if not training and memory is None:  # else the reserve is new memory, or is used up
            self.variant = NO_VARIANT
        self.algorithm: Any = None
        self.dropout: DropoutState | None = None

    def calls(self, ctx: Context) -> CallCache:
        """Return the cache of the prepared call, and take the dropout state, which no capture can make."""
        if self._training and ctx.capturing:
            raise NotInitializedError(
                "a training pass makes its reserve and gradients use it up, which a graph cannot repeat; "
                "only passes with training=False can be captured"
            )
        if self._network is not None and self._network.has_dropout:
            self.dropout = self._network.dropout_state(ctx.stream)
            self.changed = (self.dropout._memory,)
        return super().calls(ctx)

    def run(self, run: Any, ctx: Context, call: PreparedCall, *arguments: Any) -> Sequence[DeviceArray]:
        """Run the pass; repeat it after a benchmark of algorithms, which draws from the dropout state."""
        if self.dropout is not None and call.selected.needs_timing:
            saved = self.dropout.save()
            super().run(run, ctx, call, *arguments)
            self.dropout.restore(saved)
        return super().run(run, ctx, call, *arguments)

    def reserve_for(self, algorithm: Any, context: Context) -> int:
        """Return the address of memory for an algorithm's reserve; allocate it unless there is enough."""
        self.algorithm = algorithm
        spec = algorithm.reserve
        if spec.size and (self.memory is None or self.memory.size < spec.size):
            what = "the reserve of a recurrent network"
            self.memory = DeviceArray.new(spec, spec.size, context.stream, what)
        return 0 if self.memory is None else self.memory.pointer


@methods_of("RNN")
class RNNWeights(HasNetwork):
    """The methods of an RNN for its weights, which are one array."""

    @documented()
    def pack_params(
        self, weights: Mapping[str, object] | Sequence[object], *, stream: StreamLike | None = None
    ) -> DeviceArray:
        """Copy parameters into one array of ``weight_size`` items.

        Parameters
        ----------
        weights : mapping by names, or sequence in the order, of ``shapes.rnn_params.rnn_parameters(spec)``
            NumPy arrays of real numbers, or arrays on the device of the network's dtype; matrices of shape
            (out, in), biases of shape (out,).

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> names = ("l0.W_hidden", "l0.R_hidden", "l0.bW_hidden", "l0.bR_hidden")
        >>> rnn.pack_params(dict(zip(names, map(np.array, ([[2]], [[4]], [3], [5]))))).numpy()
        array([2., 4., 3., 5.], dtype=float32)
        """
        import numpy as np

        spec, where = self.spec, streams.resolve_stream(stream)
        dtype = DTYPES[spec.dtype]
        flat, on_device = np.zeros(rules.rnn_weight_size(spec), dtype.numpy), []
        parts = rules.arrange_weights(spec, weights)
        for row, part in zip(rules.rnn_parameters(spec), parts, strict=True):
            if isinstance(part, np.ndarray):
                row.view(flat)[...] = _real(part, row.name).astype(dtype.numpy)
                continue
            array = as_operand(part, row.name, where)
            if array.spec.dtype != spec.dtype:
                raise TypeError(f"{row.name} is {array.spec.dtype}; the network is {spec.dtype}")
            on_device.append((array, row))
        w = DeviceArray.from_host(flat, dtype, "nchw", where)
        for array, row in on_device:
            transform(array, out=_view(w, row), stream=where)
        return w

    def split_params(self, w: ArrayLike, layer: int, direction: int = 0) -> dict[str, DeviceArray]:
        """Return the parameters of one layer in one direction, as writable views of the weights.

        Parameters
        ----------
        w : device array, shape (weight_size,), dtype of the network
        layer : int, from 0
        direction : int, 0 for forwards or 1 for backwards

        Returns
        -------
        dict from names to DeviceArray
            In the order of cuDNN's linLayerIDs, a matrix before its bias. A matrix has shape (out, in).

        Raises
        ------
        ValueError
            The layer does not exist, or w has another size.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> rnn.split_params(ct.asarray([2, 4, 3, 5], "float32"), 0)["l0.R_hidden"].numpy()
        array([[4.]], dtype=float32)
        """
        spec, array = self.spec, self._checked(w)
        if "nchw" not in array.spec.layouts:
            raise ValueError(f"w has stride {array.spec.strides}; pass contiguous weights")
        pseudo_layer = as_index(spec.num_layers, layer, "layer") * spec.directions
        pseudo_layer += as_index(spec.directions, direction, "direction")
        rows = [row for row in rules.rnn_parameters(spec) if row.pseudo_layer == pseudo_layer]
        return {row.name: _view(array, row) for row in rows}

    @documented()
    def from_torch(
        self, state_dict: Mapping[str, object], prefix: str = "", *, stream: StreamLike | None = None
    ) -> DeviceArray:
        """Convert the weights of a ``torch.nn.RNN``, ``LSTM`` or ``GRU``; torch itself is not needed.

        Parameters
        ----------
        state_dict : mapping from torch's names to tensors or NumPy arrays
        prefix : str
            The prefix of the names, such as ``"encoder."``; other names are ignored.

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network

        Raises
        ------
        ValueError
            A name is missing or unknown, a shape does not fit, or the network has a single bias.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)  # of a torch.nn.RNN(1, 1): rnn.from_torch(module.state_dict())
        >>> names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        >>> rnn.from_torch(dict(zip(names, map(np.array, ([[2]], [[4]], [3], [5]))))).numpy()
        array([2., 4., 3., 5.], dtype=float32)
        """
        own = rules.with_prefix(state_dict, prefix)
        parts = {name: _real(_on_host(value), name) for name, value in own.items()}
        return self.pack_params(rules.from_torch(parts, self.spec, prefix=prefix), stream=stream)

    def to_torch(self, w: ArrayLike, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Copy the weights to the host, as tensors with torch's names.

        Parameters
        ----------
        w : device array, shape (weight_size,), dtype of the network
        prefix : str, put before each name

        Returns
        -------
        dict from torch's names to NumPy arrays
            The dtype is that of the network, or float32 for bfloat16, which ``torch.from_numpy`` rejects.

        Raises
        ------
        ValueError
            The network has skip input, which torch does not have.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> rnn.to_torch(ct.asarray([2, 4, 3, 5], "float32"))["weight_hh_l0"]
        array([[4.]], dtype=float32)
        """
        spec, flat = self.spec, self._checked(w).numpy()
        if spec.dtype == "bfloat16":
            flat = flat.astype("float32")
        return rules.to_torch([row.view(flat) for row in rules.rnn_parameters(spec)], spec, prefix=prefix)

    def _checked(self, w: ArrayLike) -> DeviceArray:
        array = as_operand(w, "w", stream_of(w, "w", None))
        check_weights(self.spec, array.spec)
        return array


def check_weights(spec: RNNSpec, w: TensorSpec) -> None:
    """Raise unless an array can hold all parameters of a network."""
    items = rules.rnn_weight_size(spec)
    if w.shape != (items,):
        raise ValueError(
            f"w has shape {w.shape}; the weights of this network are one axis, ({items},): {spec}"
        )


def _view(w: DeviceArray, row: RNNParameter) -> DeviceArray:
    assert row.offset + row.size <= w.size
    return w.view_as(TensorSpec.packed(row.shape, w.spec.dtype), row.offset)


def _on_host(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if not hasattr(value, "numpy"):
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    try:
        return value.numpy()
    except TypeError:  # a dtype that NumPy has not, such as bfloat16
        return value.float().numpy()


def _real(array: Any, name: str) -> Any:
    """Return the array, or raise if a cast would make real numbers of others."""
    if array.dtype.kind in NO_NUMBERS:
        raise TypeError(f"{name} is {array.dtype}; weights are real numbers")
    return array


def as_index(most: int, value: Any, name: str) -> int:
    """Return an int from 0 to ``most`` - 1, or raise."""
    n = as_int(value, name)
    if not 0 <= n < most:
        raise ValueError(f"{name} must be from 0 to {most - 1}, got {n}")
    return n
