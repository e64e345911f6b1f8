"""Recurrent networks: forward, and both gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Never

from ... import context
from ..._algorithm_names import POLICIES, SYNONYMS
from ..._hints import UNSET, corrected, known_keywords
from ...array import DeviceArray
from ...autotune.measurement import Algorithms
from ...cuda import stream as streams
from ...dtypes import DTYPES
from ...plans.base import Candidate
from ...shapes.checks import as_bool, as_choice, as_float
from ...shapes.rnn import RNN_ALGOS, RNNSpec, rnn_spec, rnn_weight_size
from ...shapes.sequences import RNN_LAYOUTS, as_integers, rnn_layout
from ...shapes.specs import check_shape
from ...typing import (
    Algo,
    ArrayLike,
    DTypeLike,
    OutLike,
    Precision,
    RNNBias,
    RNNDirection,
    RNNMode,
    SequenceLayout,
    StreamLike,
)
from .._call import ZERO, execute
from .._documented import documented
from .._state import OwnedCache
from ..dropout import DropoutState, check_seed
from .gradients import RNNGradients, RNNReserve, rnn_result_slots
from .network import Network, RNNState, RNNWeights
from .operations import FORWARD, RNNParams, table

MAX_CALLS = 1024  # that a thread keeps for a network: one for each tuple of shapes and lengths


_NO_PADDING = (0.0).hex()


class RNNForward(NamedTuple):
    """The result of a forward pass: the output, the states after it, and the reserve for the gradients.

    Attributes
    ----------
    y, hy : DeviceArray, or the arrays that were given as ``out``
    cy : the same; None for a mode without cells
    reserve : RNNReserve; None unless the pass was for training
    """

    y: DeviceArray
    hy: DeviceArray
    cy: DeviceArray | None
    reserve: RNNReserve | None


class RNN(RNNGradients, RNNWeights):
    """A recurrent network. Its weights are an array of their own.

    Parameters
    ----------
    mode : "rnn_relu", "rnn_tanh", "lstm" or "gru"
    input_size, hidden_size, num_layers : int, at least 1
    direction : "unidirectional" or "bidirectional"
    input_mode : "linear" or "skip"
        With "skip" the first layer adds its input without matrices; ``input_size`` equals ``hidden_size``.
    bias : "no_bias", "single_inp_bias", "double_bias" or "single_rec_bias"
    projection_size : int, 0 for none, else less than ``hidden_size``; "lstm" only
    dropout : float, at least 0 and less than 1
        Between the layers, in training. Its random state is ``dropout_state``.
    dtype : float16 | bfloat16 | float32 | float64
        The dtype of data, states and weights.
    precision : as everywhere
    algo : str or Candidate, optional
        A policy: "heuristic" (the default), "autotune", "online", "guess_once" or "time_once"; or "standard",
        "persist_static", "persist_dynamic" or "persist_static_small_h"; or a row of :meth:`algorithms`.
    clip : (low, high), optional; "lstm" only
        The range that cells are clipped to where they are used; returned cells are not clipped.
    seed : int
        The seed of the random state, from 0 to 2**64 - 1.

    Attributes
    ----------
    spec : RNNSpec
        The parameters as a value; its fields are attributes of the network as well.
    algo : str, Candidate or None
    weight_size, weight_bytes : int
        Items and bytes of all parameters.

    Raises
    ------
    TypeError, ValueError
        A parameter does not fit; the message has the numbers, or the names there are.

    Notes
    -----
    ``cudnnSetRNNDescriptor_v8``. Any thread may use a network, but one at a time may train it with dropout:
    each device has one random state.

    Examples
    --------
    >>> rnn = ct.RNN("lstm", 4, 8, 2, direction="bidirectional")
    >>> w = ct.zeros((rnn.weight_size,))  # or rnn.from_torch(module.state_dict())
    >>> x = ct.full((5, 3, 4), 1)  # (T, B, input_size)
    >>> y, hy, cy, reserve = rnn.forward(x, w, training=True)
    >>> y.shape, hy.shape
    ((5, 3, 16), (4, 3, 8))
    >>> dx, dh0, dc0 = rnn.backward_data(y, reserve)
    >>> dw = rnn.backward_weights(reserve)
    """

    # The fields of `spec`, which `__getattr__` returns.
    mode: RNNMode
    input_size: int
    hidden_size: int
    num_layers: int
    direction: RNNDirection
    input_mode: Literal["linear", "skip"]
    bias: RNNBias
    projection_size: int
    dropout: float
    dtype: str
    compute: str
    math: str
    clip: tuple[float, float] | None

    @known_keywords
    def __init__(
        self,
        mode: RNNMode,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *more: Never,
        direction: RNNDirection = "unidirectional",
        input_mode: Literal["linear", "skip"] = "linear",
        bias: RNNBias = "double_bias",
        projection_size: int | None = 0,
        dropout: float = 0,
        dtype: DTypeLike = "float32",
        precision: Precision | None = None,
        algo: Algo | None = None,
        clip: tuple[float, float] | None = None,
        seed: int = 0,
        **unknown: Never,
    ) -> None:
        if more or unknown or mode is UNSET or input_size is UNSET or hidden_size is UNSET:
            corrected(RNN.__init__, locals())
        known = (*POLICIES, *SYNONYMS, *RNN_ALGOS)
        self.algo = algo if algo is None or isinstance(algo, Candidate) else as_choice(algo, known, "algo")
        described = partial(
            rnn_spec,
            *(mode, input_size, hidden_size, num_layers),
            direction=direction,
            input_mode=input_mode,
            bias=bias,
            projection_size=projection_size,
            dropout=dropout,
            dtype=dtype,
            precision=precision,
            algo=self.algo if self.algo in RNN_ALGOS else "standard",
            clip=clip,
        )
        specs = {allowed: described(allow_tf32=allowed) for allowed in (False, True)}
        self.seed = check_seed(seed)
        self._network = Network(specs, self.algo, self.seed)
        self.weight_size = rnn_weight_size(self.spec)
        self.weight_bytes = self.weight_size * DTYPES[self.spec.dtype].itemsize
        self._cache = OwnedCache(MAX_CALLS)

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            if not name.startswith("_") and name in RNNSpec._fields:
                return getattr(self.spec, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<RNN {self.spec}, {self.algo or 'algorithm by the settings'}>"

    @documented()
    def forward(
        self,
        x: ArrayLike,
        w: ArrayLike,
        h0: ArrayLike | None = None,
        c0: ArrayLike | None = None,
        *,
        lengths: Iterable[int] | None = None,
        layout: SequenceLayout = "sequence_major",
        training: bool = False,
        padding_value: float = 0,
        out: OutLike | None = None,
        stream: StreamLike | None = None,
    ) -> RNNForward:
        """Run the network over sequences.

        Parameters
        ----------
        x : device array, dtype of the network
            Shape (T, B, input_size), (B, T, input_size) or (sum of lengths, input_size) by ``layout``. Values
            past the end of a sequence are not read.
        w : device array, shape (weight_size,), dtype of the network
        h0 : device array, shape (layers * directions, B, output_size), optional
            The states before the first step; zero by default. ``output_size`` is ``projection_size`` if that
            is not 0, else ``hidden_size``.
        c0 : device array, shape (layers * directions, B, hidden_size), optional; "lstm" only
        lengths : B ints, 0 to T, optional
            The number of steps of each sequence, in any order; T by default. Packed data needs them, with
            the longest first and none 0.
        layout : "sequence_major", "batch_major" or "packed"
        training : bool
            Return a reserve for the gradients, and apply dropout.
        padding_value : float
            The value of y past the end of a sequence.
        out : device array, or a tuple (y, hy, cy), optional
            Arrays for the results, in C order; None in the tuple for a new one.

        Returns
        -------
        RNNForward
            ``y``, like x with ``directions * output_size`` for ``input_size``; ``hy`` and ``cy``, like h0 and
            c0: the states after each sequence's last step; and ``reserve`` for the gradients.

        Notes
        -----
        ``cudnnRNNForward``.

        The same bits from run to run, on GPUs of one architecture. The release notes of cuDNN make an
        exception: if several streams use cuBLAS, set ``CUBLAS_WORKSPACE_CONFIG=:4096:2`` in the environment.

        Examples
        --------
        >>> rnn = ct.RNN("rnn_relu", 1, 1, input_mode="skip", bias="no_bias")  # it adds its inputs
        >>> w = rnn.pack_params({"l0.R_hidden": np.ones((1, 1))})
        >>> x = ct.asarray([[[1]], [[2]], [[3]]], "float32")  # (T, B, input_size)
        >>> y, hy, _, _ = rnn.forward(x, w)
        >>> y.numpy().ravel(), hy.numpy().ravel()
        (array([1., 3., 6.], dtype=float32), array([6.], dtype=float32))
        """
        network, training = self._network, as_bool(training, "training")
        state = RNNState(self._cache, training=training, network=network if training else None)
        names: tuple[str, ...] = ("x", "w")
        operands: tuple[ArrayLike, ...] = (x, w)
        for name, array in () if h0 is None and c0 is None else (("h0", h0), ("c0", c0)):
            if array is not None:
                names, operands = (*names, name), (*operands, array)
        if lengths is not None:
            lengths = as_integers(lengths)
        order: str = layout
        if type(layout) is not str or layout not in RNN_LAYOUTS:
            order = rnn_layout(layout)
        padding = _NO_PADDING
        if padding_value is not ZERO:
            padding = as_float(padding_value, "padding_value").hex()
        params = (network, lengths, order, training, padding)
        outs = rnn_result_slots(out, ("y", "hy", "cy"), has_cells=network.has_cells)
        y, hy, *cy = execute(FORWARD, names, operands, params, outs=outs, stream=stream, state=state)
        reserve = RNNReserve(self, state) if training else None
        return RNNForward(y, hy, cy[0] if cy else None, reserve)

    @property
    def dropout_state(self) -> DropoutState:
        """Dropout state on the current device, to be saved and restored; made when it is first needed.

        Raises
        ------
        ValueError
            The probability is 0, or the network has one layer.
        """
        if not self._network.has_dropout:
            raise ValueError(
                f"this RNN has no dropout state: dropout={self.spec.dropout:g}, "
                f"num_layers={self.spec.num_layers}"
            )
        return self._network.dropout_state(streams.resolve_stream(None))

    @documented(forward)
    def algorithms(
        self,
        x_shape: Iterable[int],
        *,
        lengths: Iterable[int] | None = None,
        layout: SequenceLayout = "sequence_major",
        training: bool = False,
        measure: bool = True,
        stream: StreamLike | None = None,
    ) -> Algorithms:
        """List the algorithms for data of a shape, with the time of each.

        Parameters
        ----------
        x_shape : shape of x, as :meth:`forward` takes it
        measure : bool
            Time each forward pass, on zeros.

        Returns
        -------
        Algorithms
            A tuple of :class:`Candidate`, the fastest first, then those that were ``rejected``. A row can be
            the ``algo=`` of a network.

        Examples
        --------
        >>> rnn = ct.RNN("lstm", 16, 16)
        >>> table = rnn.algorithms((5, 2, 16))  # print(table) shows it
        >>> rnn = ct.RNN("lstm", 16, 16, algo=table[0])
        """
        shape = check_shape(x_shape, "x_shape")
        training, measure = as_bool(training, "training"), as_bool(measure, "measure")
        where = streams.resolve_stream(stream)
        found = None if lengths is None else as_integers(lengths)
        params = RNNParams(self._network, found, rnn_layout(layout), training, (0.0).hex())
        with streams.on_device(where.device):
            return table(context.current(where), shape, params, measure=measure)

    def describe(self) -> str:
        """Return the passes that were computed, their algorithms, and rejections with their reasons."""
        passes = [call for call in self._cache.values() if call.problem.name == "forward"]
        lines = [f"{call.problem.problem}\n{call.selected.describe()}" for call in passes]
        return "\n".join(dict.fromkeys(lines)) or f"{self!r}: nothing was computed yet"
