"""Recurrent networks: forward, and both gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import context
from ..._config import config
from ...array import DeviceArray
from ...array_creation import as_operand
from ...autotune.request import POLICIES, SYNONYMS
from ...context import Context
from ...cuda import memory as memories
from ...cuda import stream as streams
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...errors import AllocationError, BadParamError, NotInitializedError, NotSupportedError
from ...plans.base import Candidate
from ...shapes.parse import as_bool, as_choice
from ...shapes.rnn import RNN_ALGOS, RNNSpec, rnn_spec
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_weights import from_torch, to_torch, with_prefix
from ...shapes.specs import check_shape
from .._operands import stream_of
from ..conv.algorithms import Algorithms
from ..dropout import DropoutState, check_seed
from .algorithms import autotune_preserving_rng, table, zeros
from .call import ResultSlot, aligned, as_given, contiguous, enqueue, given_results, parts_of, result_slot
from .plans import TrainingState
from .prepared import RNNCalls, lengths_of
from .reserve import RNNReserve
from .weights import host_parts, pack, split, to_host

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RNN", "RNNDataGradients", "RNNForward", "RNNReserve"]


class RNNForward(NamedTuple):
    """The result of a pass forward: the output, the states after it, and what the gradients need.

    Attributes
    ----------
    y, hy : DeviceArray, or what was given as ``out``
    cy : the same; None for a mode without cells
    reserve : RNNReserve; None unless the pass was for training
    """

    y: Any
    hy: Any
    cy: Any
    reserve: RNNReserve | None


class RNNDataGradients(NamedTuple):
    """Gradients with regard to the input and to the states before it.

    Attributes
    ----------
    dx, dh0 : DeviceArray, or what was given as ``out``
    dc0 : the same; None for a mode without cells
    """

    dx: Any
    dh0: Any
    dc0: Any


class RNN:
    """A recurrent network: its description, and the ways to compute it. Its weights are an array apart.

    Parameters
    ----------
    mode : "rnn_relu", "rnn_tanh", "lstm" or "gru"
    input_size, hidden_size, num_layers : int, at least 1
    direction : "unidirectional" or "bidirectional"
    input_mode : "linear" or "skip"
        Whether the first layer has matrices for its input, or adds it as it is, which needs ``input_size``
        equal to ``hidden_size``.
    bias : "no_bias", "single_inp_bias", "double_bias" or "single_rec_bias"
    projection_size : int, 0 for none, else less than ``hidden_size``; "lstm" only
    dropout : float, at least 0 and less than 1
        Between the layers, in training. The dice are ``dropout_state``.
    dtype : float16 | bfloat16 | float32 | float64
        Of data, states and weights.
    precision : as everywhere
    algo : str or Candidate, optional
        A policy: "heuristic" (the default), "autotune", "guess_once" or "time_once"; or "standard",
        "persist_static", "persist_dynamic" or "persist_static_small_h"; or a row of :meth:`algorithms`.
    clip : (low, high), optional; "lstm" only
        The range that cells are clipped to where they are used; those that are returned are not.
    seed : int
        Of the dice, from 0 to 2**64 - 1.

    Attributes
    ----------
    spec : RNNSpec
        All of that, checked, as a value; its fields are attributes of the network as well.
    algo : str, Candidate or None
        As it was given.
    weight_size, weight_bytes : int
        Items and bytes of all parameters.

    Raises
    ------
    TypeError, ValueError
        A parameter does not fit; the message has the numbers, or the names there are.

    Notes
    -----
    ``cudnnSetRNNDescriptor_v8``. Any thread may use a network; what is prepared for a call belongs to its
    thread. Training with dropout is for one thread at a time: there is one set of dice for a device.

    Examples
    --------
    >>> rnn = ct.RNN("lstm", 4, 8, 2, direction="bidirectional")
    >>> w = ct.zeros((rnn.weight_size,))  # or rnn.from_torch(module.state_dict())
    >>> x = ct.full((5, 3, 4), 1)  # (T, B, input_size)
    >>> y, hy, cy, reserve = rnn.forward(x, w, training=True)
    >>> y.shape, hy.shape
    ((5, 3, 16), (4, 3, 8))
    >>> dx, dh0, dc0 = rnn.backward_data(reserve, y)
    >>> dw = rnn.backward_weights(reserve)
    """

    def __init__(
        self,
        mode: Any,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        direction: Any = "unidirectional",
        input_mode: Any = "linear",
        bias: Any = "double_bias",
        projection_size: int | None = 0,
        dropout: float = 0,
        dtype: Any = "float32",
        precision: str | None = None,
        algo: Any = None,
        clip: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.algo = algo if algo is None or isinstance(algo, Candidate) else _algo(algo)

        def described(allow_tf32: bool) -> RNNSpec:
            return rnn_spec(
                mode,
                input_size,
                hidden_size,
                num_layers,
                direction=direction,
                input_mode=input_mode,
                bias=bias,
                projection_size=projection_size,
                dropout=dropout,
                dtype=dtype,
                precision=precision,
                algo=self.algo if self.algo in RNN_ALGOS else "standard",
                clip=clip,
                allow_tf32=allow_tf32,
            )

        self._specs = {allowed: described(allowed) for allowed in (False, True)}
        self.seed = check_seed(seed)
        self.weight_size = rnn_weight_size(self.spec)
        self.weight_bytes = self.weight_size * DTYPES[self.spec.dtype].itemsize
        self._w = result_slot((self.weight_size,), self.spec.dtype)
        self._prepared = RNNCalls(self._specs, self.algo, self.seed)

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._specs[config.allow_tf32]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in RNNSpec._fields:
            return getattr(self.spec, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        network = str(self.spec).rpartition(", ")[0]
        return f"<RNN {network}, {self.algo or 'algorithm by the settings'}>"

    # --- weights ---

    def pack_params(self, weights: Mapping[str, Any] | Sequence[Any], *, stream: Any = None) -> DeviceArray:
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

    def split_params(self, w: Any, layer: int, direction: int = 0) -> dict[str, DeviceArray]:
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
            There is no such layer, or w has another size.

        Notes
        -----
        A view knows what was done with the weights until it was made, and neither knows what is done with the
        other later: synchronise where one is written and the other used on different streams.

        That cuDNN has them at these places is asked of it (``cudnnGetRNNWeightParams``) for each algorithm.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_tanh", 1, 1)
        >>> rnn.split_params(ct.asarray([2, 4, 3, 5], "float32"), 0)["l0.R_hidden"].numpy()
        array([[4.]], dtype=float32)
        """
        array = as_operand(w, "w", stream_of(w, "w", None))
        return split(self.spec, array, layer, direction)

    def from_torch(
        self, state_dict: Mapping[str, Any], prefix: str = "", *, stream: Any = None
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
            ``state_dict`` is no mapping, ``prefix`` no string, or a value no array of real numbers.
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

    def to_torch(self, w: Any, prefix: str = "") -> dict[str, np.ndarray[Any, Any]]:
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

    # --- computing ---

    def forward(
        self,
        x: Any,
        w: Any,
        h0: Any = None,
        c0: Any = None,
        *,
        lengths: Iterable[int] | None = None,
        layout: Any = "sequence_major",
        training: bool = False,
        padding_value: float = 0,
        out: Any = None,
        stream: Any = None,
    ) -> RNNForward:
        """Run the network over sequences.

        Parameters
        ----------
        x : device array, dtype of the network
            Of shape (T, B, input_size), (B, T, input_size) or (sum of lengths, input_size) by ``layout``.
            What is past the end of a sequence is not looked at.
        w : device array, shape (weight_size,), dtype of the network
        h0 : device array, shape (layers * directions, B, output_size), optional
            The states before the first step; zero by default. ``output_size`` is ``projection_size``, where
            there is a projection, else ``hidden_size``.
        c0 : device array, shape (layers * directions, B, hidden_size), optional; "lstm" only
        lengths : B ints, 0 to T, optional
            The number of steps of each sequence, in any order; T by default. Packed data needs them, with
            the longest first and none 0. Those on the device are read, which waits for it.
        layout : "sequence_major", "batch_major" or "packed"
        training : bool
            Remember what the gradients need, and throw the dice of dropout.
        padding_value : float
            What y is past the end of a sequence.
        out : device array, or a tuple (y, hy, cy), optional
            Where results go, in C order; None in the tuple for one that is made.
        stream : optional
            An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

        Returns
        -------
        RNNForward
            ``y``, like x with ``directions * output_size`` for ``input_size``; ``hy`` and ``cy``, like h0 and
            c0: the states after each sequence's last step; and ``reserve`` for the gradients.

        Raises
        ------
        TypeError
            An operand is not on the device, or of another dtype than the network.
        ValueError
            Shapes, lengths or the size of w do not fit; the message has the numbers.
        NotSupportedError
            cuDNN does not compute this, or not by the algorithm that was named; the message has others.
        AllocationError
            Device memory ran out.

        Notes
        -----
        ``cudnnRNNForward``.

        By cuDNN's manual the same bits from run to run, on GPUs of one architecture; its release notes make
        an exception for products of matrices while several streams use cuBLAS, which
        ``CUBLAS_WORKSPACE_CONFIG=:4096:2`` in the environment takes away.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds what it sees
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, hy, _, _ = rnn.forward(x, w)
        >>> y.numpy().ravel(), hy.numpy().ravel()
        (array([1., 3., 6.], dtype=float32), array([6.], dtype=float32))
        """
        where = streams.current_stream(x.device) if stream is None and type(x) is DeviceArray else None
        where = where or stream_of(x, "x", stream)
        previous = streams.set_device(where.device)
        try:
            ctx = context.current(where)
            operands = (
                _as_operand(x, "x", where),
                _as_operand(w, "w", where),
                None if h0 is None else _as_operand(h0, "h0", where),
                None if c0 is None else _as_operand(c0, "c0", where),
            )
            training = as_bool(training, "training")
            call = self._prepared.call(ctx, operands, lengths, layout, training, padding_value)
            if call.packs or not aligned(operands):
                copies = tuple(contiguous(array, where) for array in operands)
                operands = copies  # type: ignore[assignment]
            given = parts = None
            if out is not None:
                parts = parts_of(out, _STATES)
                given = given_results(parts, _STATES, call.results, where)
            done = TrainingState() if training else None
            dice = self._prepared.dropout_state_on(where) if training and self._prepared.drops else None
            if dice is not None and call.choice.needs_timing:
                autotune_preserving_rng(ctx, call, operands, dice)

            def work(pointers: list[int]) -> None:
                call.choice.run(ctx, (*pointers, done), 1.0, 0.0)

            changed = () if dice is None else (dice._memory,)
            y, hy, cy = enqueue(ctx, call, "forward", operands, call.results, given, changed, work)
            reserve = None
            if done is not None:
                arrays = (*operands, y)
                reserve = RNNReserve(self, call, done.plan, done.memory, arrays, where.device)
            if parts is not None:
                y, hy, cy = as_given(parts, (y, hy, cy))
            return RNNForward(y, hy, cy, reserve)
        finally:
            if previous is not None:
                streams.restore_device(previous)

    def backward_data(
        self,
        reserve: RNNReserve | None,
        dy: Any = None,
        dhy: Any = None,
        dcy: Any = None,
        *,
        out: Any = None,
        stream: Any = None,
    ) -> RNNDataGradients:
        """Compute the gradients of a training pass with regard to its input and first states.

        Parameters
        ----------
        reserve : RNNReserve
            What ``forward(..., training=True)`` gave; it is used for this once.
        dy : device array, shape and dtype of y, optional
            What is past the end of a sequence is not looked at.
        dhy, dcy : device arrays, as hy and cy, optional
            Gradients that are missing are zero.
        out : device array, or a tuple (dx, dh0, dc0), optional
            Where results go, in C order; None in the tuple for one that is made.
        stream : optional

        Returns
        -------
        RNNDataGradients
            ``dx``, like x, 0 past the end of a sequence; ``dh0``, and ``dc0``, None without cells.

        Raises
        ------
        TypeError
            There is no reserve, or a gradient is not on the device or of another dtype.
        ValueError
            The reserve is of another network or was used before, or a shape does not fit.
        NotInitializedError
            A CUDA graph is being captured on the stream.
        NotSupportedError, AllocationError
            As in :meth:`forward`.

        Notes
        -----
        ``cudnnRNNBackwardData_v8``.

        The same bits from run to run as far as those of :meth:`forward` are.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds what it sees
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, _, _, reserve = rnn.forward(x, w, training=True)
        >>> dx, dh0, _ = rnn.backward_data(reserve, ct.asarray([[[1]], [[1]], [[1]]], "float32"))
        >>> dx.numpy().ravel()
        array([3., 2., 1.], dtype=float32)
        """
        kept = _as_reserve(reserve)
        where = _where(kept, stream)
        previous = streams.set_device(where.device)
        try:
            ctx = context.current(where)
            _refuse_capture(ctx)
            call, plan, memory = kept._call, kept._plan, kept._memory
            gradients = []
            for name, given, like in zip(("dy", "dhy", "dcy"), (dy, dhy, dcy), call.results, strict=True):
                gradients.append(None if given is None else _gradient(given, name, like, where))
            results = parts = None
            if out is not None:
                parts = parts_of(out, _GRADIENTS)
                results = given_results(parts, _GRADIENTS, call.gradients, where)
            kept.take(self, "backward_data")
            try:
                if gradients[0] is None:  # cuDNN takes none for the states only
                    gradients[0] = zeros(call.results[0], where)
                x, w, h0, c0, y = kept._arrays

                def work(pointers: list[int]) -> None:
                    if plan.ragged:  # what cuDNN leaves alone is zero as well
                        assert call.gradients[0] is not None
                        memories.fill(pointers[7], b"\0", call.gradients[0][1], where)
                    plan.backward_data(ctx, pointers, 0 if memory is None else memory.pointer)

                inputs = (y, gradients[0], h0, c0, w, gradients[1], gradients[2])
                changed = () if memory is None else (memory,)
                rooms = call.gradients  # apart from x as well, which backward_weights reads
                made = enqueue(ctx, call, "backward_data", inputs, rooms, results, changed, work, (x,))
            except _UNCHANGED:
                kept.give_back("backward_data")
                raise
            dx, dh0, dc0 = made if parts is None else as_given(parts, made)
            return RNNDataGradients(dx, dh0, dc0)
        finally:
            if previous is not None:
                streams.restore_device(previous)

    def backward_weights(
        self, reserve: RNNReserve | None, *, out: Any = None, add: bool = False, stream: Any = None
    ) -> Any:
        """Compute the gradient of a training pass with regard to the weights; after :meth:`backward_data`.

        Parameters
        ----------
        reserve : RNNReserve
            It is used for this once, and lets go of its memory then.
        out : device array, shape (weight_size,), dtype of the network, optional
            Where the result goes.
        add : bool
            Add to what ``out`` holds, which this needs.
        stream : optional

        Returns
        -------
        DeviceArray, shape (weight_size,), dtype of the network; or ``out``
            ``split_params`` shows its parts.

        Raises
        ------
        TypeError
            There is no reserve, or ``out`` is not on the device or of another dtype.
        ValueError
            The reserve is of another network, was used before, or :meth:`backward_data` was not called;
            ``out`` does not fit, or there is none to add to.
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
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds what it sees
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, _, _, reserve = rnn.forward(x, w, training=True)
        >>> gradients = rnn.backward_data(reserve, ct.asarray([[[1]], [[1]], [[1]]], "float32"))
        >>> rnn.backward_weights(reserve).numpy()
        array([5.], dtype=float32)
        """
        kept = _as_reserve(reserve)
        if as_bool(add, "add") and out is None:
            raise ValueError("add=True needs out, the array that it adds to")
        where = _where(kept, stream)
        previous = streams.set_device(where.device)
        try:
            ctx = context.current(where)
            _refuse_capture(ctx)
            call, plan, memory = kept._call, kept._plan, kept._memory
            results = None
            if out is not None:
                results = given_results((out,), ("dw",), (self._w,), where)
            kept.take(self, "backward_weights")
            try:
                x, _, h0, _, y = kept._arrays

                def work(pointers: list[int]) -> None:
                    if not add:
                        memories.fill(pointers[3], b"\0", self.weight_bytes, where)
                    plan.backward_weights(ctx, pointers, 0 if memory is None else memory.pointer)

                changed = () if memory is None else (memory,)
                (dw,) = enqueue(ctx, call, "backward_weights", (x, h0, y), (self._w,), results, changed, work)
            except _UNCHANGED:
                kept.give_back("backward_weights")
                raise
            kept.finish()
            return dw if out is None else out
        finally:
            if previous is not None:
                streams.restore_device(previous)

    # --- algorithms and dice ---

    @property
    def dropout_state(self) -> DropoutState:
        """The dice of dropout on the current device, to be saved and set back; made when first needed.

        Raises
        ------
        ValueError
            Nothing is dropped: the probability is 0, or there is one layer.
        """
        if not self._prepared.drops:
            raise ValueError(
                f"this network has no dice: dropout is {self.spec.dropout:g}, and there "
                f"{'are' if self.spec.num_layers > 1 else 'is'} {self.spec.num_layers} of layers"
            )
        return self._prepared.dropout_state_on(streams.resolve_stream(None))

    def algorithms(
        self,
        x_shape: Iterable[int],
        *,
        lengths: Iterable[int] | None = None,
        layout: Any = "sequence_major",
        training: bool = False,
        measure: bool = True,
        stream: Any = None,
    ) -> Algorithms:
        """List the algorithms that there are for data of a shape, with the time of each.

        Parameters
        ----------
        x_shape : shape of x, as :meth:`forward` takes it
        lengths, layout, training, stream
            As in :meth:`forward`.
        measure : bool
            Time each pass forward, on zeros.

        Returns
        -------
        Algorithms
            A tuple of :class:`Candidate`, the quickest first, then those that were refused, with their
            ``status``. A row is good as ``algo=`` of a network.

        Raises
        ------
        TypeError, ValueError
            As in :meth:`forward`.

        Examples
        --------
        >>> rnn = ct.RNN("lstm", 16, 16)
        >>> table = rnn.algorithms((5, 2, 16))  # print(table) shows it
        >>> rnn = ct.RNN("lstm", 16, 16, algo=table[0])
        """
        shape = check_shape(x_shape, "x_shape")
        training, measure = as_bool(training, "training"), as_bool(measure, "measure")
        where = streams.resolve_stream(stream)
        previous = streams.set_device(where.device)
        try:
            ctx = context.current(where)
            dice, networks = self._prepared.dropout_state(ctx, training)
            found = None if lengths is None else lengths_of(lengths, ctx)
            return table(ctx, self.spec, shape, found, layout, training, measure, dice, networks)
        finally:
            streams.restore_device(previous)

    def describe(self) -> str:
        """Tell what was computed with the network, by which algorithms, and what was refused and why."""
        return self._prepared.describe() or f"{self!r}: nothing was computed yet"


_STATES = ("y", "hy", "cy")
_GRADIENTS = ("dx", "dh0", "dc0")

# A refusal, or memory that was short: nothing was enqueued, so the reserve is as it was.
_UNCHANGED = (NotSupportedError, BadParamError, AllocationError, ValueError, TypeError)


def _algo(algo: Any) -> str:
    name = as_choice(algo, (*POLICIES, *SYNONYMS, *RNN_ALGOS), "algo")
    return SYNONYMS.get(name, name)


def _as_operand(array: Any, name: str, where: Stream) -> DeviceArray:
    if type(array) is DeviceArray and array.device == where.device:
        return array
    return as_operand(array, name, where)


def _gradient(given: Any, name: str, wanted: ResultSlot, where: Stream) -> DeviceArray:
    if wanted is None:
        raise ValueError(f"{name} is given, but the network has no cells; only 'lstm' has")
    like, _ = wanted
    array = _as_operand(given, name, where)
    if array.spec.dtype != like.dtype:
        raise TypeError(f"{name} is {array.spec.dtype}; the network is {like.dtype}")
    if array.spec.shape != like.shape:
        raise ValueError(f"{name} has shape {array.spec.shape}; it is of {like.shape}")
    packed = contiguous(array, where)
    assert packed is not None
    return packed


def _as_reserve(reserve: Any) -> RNNReserve:
    if not isinstance(reserve, RNNReserve):
        hint = "; forward gives one with training=True" if reserve is None else ""
        raise TypeError(f"reserve must be what forward gave, not {type(reserve).__name__}{hint}")
    return reserve


def _where(reserve: RNNReserve, stream: Any) -> Stream:
    if stream is None:
        where = streams.current_stream(reserve.device)
    else:
        where = streams.as_stream(stream, reserve.device)
    if where.device != reserve.device:
        raise ValueError(f"the reserve is on device {reserve.device}; the operation runs on {where.device}")
    return where


def _refuse_capture(ctx: Context) -> None:
    if ctx.capturing:
        raise NotInitializedError(
            "a gradient uses up its reserve, which a graph would use again each time it is launched; "
            "only passes with training=False can be captured"
        )
