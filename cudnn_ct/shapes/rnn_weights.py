"""Weights of recurrent networks that come from elsewhere: checked and put in order, from torch and to it.

How the tensors of ``torch.nn.RNN``, ``LSTM`` and ``GRU`` correspond to the parameters here, for layer ``i``;
in torch the gates of one tensor lie one below the other:

=================================  ====================================  =====================================
torch                              here, by gate                         order of the gates in both
=================================  ====================================  =====================================
``weight_ih_l{i}``                 ``l{i}.W_*``                          RNN: hidden
``weight_hh_l{i}``                 ``l{i}.R_*``                          LSTM: input, forget, cell, output
``bias_ih_l{i}``                   ``l{i}.bW_*``                         (torch's i, f, g, o)
``bias_hh_l{i}``                   ``l{i}.bR_*``                         GRU: reset, update, new
``weight_hr_l{i}``                 ``l{i}.P`` (the projection)           (torch's r, z, n)
``*_l{i}_reverse``                 ``l{i}_reverse.*``
=================================  ====================================  =====================================

torch has both biases or none. Where there is one bias here, it is the sum of torch's two, since they are
only ever added - but for a GRU's new gate, whose state bias is multiplied by the reset gate: there the bias
that is missing here must be zero. To torch, a missing bias goes as zeros. torch has no skip input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .rnn import RNN_BIASES, RNNSpec
from .rnn_params import rnn_parameters

_TENSORS = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "bW", "bias_hh": "bR", "weight_hr": "P"}


def arrange_weights(spec: RNNSpec, weights: Mapping[str, Any] | Sequence[Any]) -> tuple[Any, ...]:
    """Return parameters in the order of :func:`rnn_parameters`, from a mapping by their names or a sequence.

    Parameters
    ----------
    spec : RNNSpec
    weights : mapping from names to arrays, or arrays in the order of ``rnn_parameters(spec)``

    Returns
    -------
    tuple of arrays
        Those that were given.

    Raises
    ------
    TypeError
        ``weights`` is neither a mapping nor a sequence, or one of them is no array.
    ValueError
        One is missing, unknown, or of another shape; the message says which, and what it should be.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> named = {"l0.R_hidden": np.ones((4, 4)), "l0.W_hidden": np.zeros((4, 5))}
    >>> [w.shape for w in arrange_weights(rnn_spec("rnn_tanh", 5, 4, bias="no_bias"), named)]
    [(4, 5), (4, 4)]
    """
    rows = rnn_parameters(spec)
    if isinstance(weights, Mapping):
        _check_names({row.name for row in rows}, weights, "the mapping of weights")
        weights = [weights[row.name] for row in rows]
    weights = listed(weights)
    if len(weights) != len(rows):
        raise ValueError(f"there are {len(weights)} weights; this network has {len(rows)}: {spec}")
    for row, array in zip(rows, weights, strict=True):
        _check_array(row.name, array, row.shape)
    return tuple(weights)


def listed(weights: Any) -> list[Any]:
    """A sequence of weights as a list."""
    try:
        return list(weights)
    except TypeError:
        name = type(weights).__name__
        raise TypeError(f"weights are a mapping by names or a sequence, not {name}") from None


def from_torch(state: Mapping[str, Any], spec: RNNSpec, *, prefix: str = "") -> tuple[Any, ...]:
    """Take apart the weights of a recurrent network of torch; the table above says how.

    Parameters
    ----------
    state : mapping from torch's names to NumPy arrays
        ``{name: tensor.numpy() for name, tensor in module.state_dict().items()}``
    spec : RNNSpec
    prefix : str
        What stands before the names where the network is part of a larger module, such as ``"encoder."``;
        names that do not begin with it are passed over.

    Returns
    -------
    tuple of arrays, in the order of :func:`rnn_parameters`
        Views of those given, but for the sum of two biases, which is float64, so that it is rounded once, to
        the dtype of the network.

    Raises
    ------
    ValueError
        A name is missing or unknown, a shape does not fit, or the biases of a GRU cannot be made one.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> state = {"weight_ih_l0": np.arange(6).reshape(3, 2), "weight_hh_l0": np.ones((3, 1))}
    >>> [w.tolist() for w in from_torch(state, rnn_spec("gru", 2, 1, bias="no_bias"))]
    [[[0, 1]], [[2, 3]], [[4, 5]], [[1.0]], [[1.0]], [[1.0]]]
    """
    shapes = dict(_torch_shapes(spec))
    own = {str(name).removeprefix(prefix): a for name, a in with_prefix(state, prefix).items()}
    _check_names(set(shapes), own, "the state")
    for name, shape in shapes.items():
        _check_array(prefix + name, own[name], shape)
    parts: dict[str, Any] = {}
    for name, array in own.items():
        tensor, where = _split(name)
        letter = _TENSORS[tensor]
        if letter == "P":
            parts[f"{where}.P"] = array
            continue
        for gate, rows in _gate_rows(spec):
            parts[f"{where}.{letter}_{gate}"] = array[rows]
    if sum(RNN_BIASES[spec.bias]) == 1:
        _join_biases(spec, parts)
    return tuple(parts[row.name] for row in rnn_parameters(spec))


def with_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What of a state has names that begin with a prefix, by its names as they are.

    >>> with_prefix({"encoder.bias": 1, "decoder.bias": 2}, "encoder.")
    {'encoder.bias': 1}
    """
    _check_prefix(prefix)
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a mapping from names to arrays, not {type(state).__name__}")
    return {name: value for name, value in state.items() if str(name).startswith(prefix)}


def to_torch(
    weights: Mapping[str, Any] | Sequence[Any], spec: RNNSpec, *, prefix: str = ""
) -> dict[str, Any]:
    """Put together the weights of a recurrent network for torch; the table above says how.

    Parameters
    ----------
    weights : mapping from names to NumPy arrays, or arrays in the order of :func:`rnn_parameters`
    spec : RNNSpec
    prefix : str
        Put before each name.

    Returns
    -------
    dict from torch's names to new NumPy arrays
        ``module.load_state_dict({name: torch.from_numpy(a) for name, a in ....items()})``

    Raises
    ------
    ValueError
        The weights do not fit the network, or it has skip input, which torch has not.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> weights = [np.full((1, 1), i) for i in range(6)]
    >>> for name, array in to_torch(weights, rnn_spec("gru", 1, 1, bias="no_bias")).items():
    ...     print(name, array.ravel())
    weight_ih_l0 [0 1 2]
    weight_hh_l0 [3 4 5]
    """
    import numpy as np

    _check_prefix(prefix)
    rows = rnn_parameters(spec)
    shapes = dict(_torch_shapes(spec))
    parts = {row.name: array for row, array in zip(rows, arrange_weights(spec, weights), strict=True)}
    state = {}
    for name in shapes:
        tensor, where = _split(name)
        letter = _TENSORS[tensor]
        if letter == "P":
            state[prefix + name] = np.array(parts[f"{where}.P"])
            continue
        like = parts[f"{where}.R_{spec.gates[0]}"]
        missing = np.zeros(spec.hidden_size, like.dtype)  # a bias that is not there adds nothing
        gates = [parts.get(f"{where}.{letter}_{gate}", missing) for gate in spec.gates]
        state[prefix + name] = np.concatenate(gates)
    return state


def _check_prefix(prefix: Any) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, not {prefix!r}")


def _check_array(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(array, "shape"):
        raise TypeError(f"{name} must be an array of shape {shape}, not {type(array).__name__}")
    if tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(array.shape)}; this network needs {shape}")


def _torch_shapes(spec: RNNSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of torch's tensors for a network, in torch's order."""
    if spec.input_mode == "skip":
        raise ValueError("torch has no skip input: its first layer always has matrices for the input")
    rows = len(spec.gates) * spec.hidden_size
    for layer in range(spec.num_layers):
        for ending in ("", "_reverse")[: spec.directions]:
            where = f"_l{layer}{ending}"
            yield f"weight_ih{where}", (rows, spec.layer_input_size(layer))
            yield f"weight_hh{where}", (rows, spec.output_size)
            if any(RNN_BIASES[spec.bias]):
                yield f"bias_ih{where}", (rows,)
                yield f"bias_hh{where}", (rows,)
            if spec.projection_size:
                yield f"weight_hr{where}", (spec.projection_size, spec.hidden_size)


def _split(name: str) -> tuple[str, str]:
    """``weight_ih_l0_reverse`` as ``weight_ih`` and ``l0_reverse``."""
    kind, part, where = name.split("_", 2)
    return f"{kind}_{part}", where


def _gate_rows(spec: RNNSpec) -> Iterator[tuple[str, slice]]:
    """The rows of each gate in a tensor that has all gates."""
    size = spec.hidden_size
    for number, gate in enumerate(spec.gates):
        yield gate, slice(number * size, (number + 1) * size)


def _join_biases(spec: RNNSpec, parts: dict[str, Any]) -> None:
    """Make one bias of each two, under the name of the one that the network has."""
    import numpy as np

    kept, dropped = ("bW", "bR") if spec.bias == "single_inp_bias" else ("bR", "bW")
    for name in [name for name in parts if f".{kept}_" in name]:
        other = parts[name.replace(f".{kept}_", f".{dropped}_")]
        if spec.mode == "gru" and name.endswith("_new"):
            if other.any():
                raise ValueError(
                    f"bias={spec.bias!r} cannot hold both biases of a GRU's new gate: {name} has no room for "
                    f"torch's other one, whose largest element is {abs(other).max()}; bias='double_bias' can"
                )
        elif other.any():
            parts[name] = np.add(parts[name], other, dtype=np.float64)


def _check_names(wanted: set[str], given: Mapping[str, Any], what: str) -> None:
    missing, unknown = sorted(wanted - set(given)), sorted(map(str, set(given) - wanted))
    if missing or unknown:
        faults = [f"lacks {', '.join(missing)}"] * bool(missing)
        faults += [f"has {', '.join(unknown)}, which this network has not"] * bool(unknown)
        raise ValueError(f"{what} {' and '.join(faults)}")
