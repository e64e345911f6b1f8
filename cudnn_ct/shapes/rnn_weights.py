"""Weights of recurrent networks: checked, put in order, and converted from torch and to torch.

Tensors ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh`` and ``weight_hr`` of torch have the parameters
``W``, ``R``, ``bW``, ``bR`` and ``P`` of a layer, one gate below the other, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .rnn import RNN_BIASES, RNNSpec, rnn_parameters
from .specs import Shape


def arrange_weights(spec: RNNSpec, weights: Mapping[str, Any] | Sequence[Any]) -> tuple[Any, ...]:
    """Return weights, a mapping by name or a sequence, in the order of :func:`rnn_parameters`, or raise.

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
    """Return a sequence of weights as a list, or raise."""
    try:
        return list(weights)
    except TypeError:
        name = type(weights).__name__
        raise TypeError(f"weights are a mapping by names or a sequence, not {name}") from None


def from_torch(state: Mapping[str, Any], spec: RNNSpec, *, prefix: str = "") -> tuple[Any, ...]:
    """Return views of the arrays of a torch state in the order of :func:`rnn_parameters`."""
    import numpy as np

    if sum(RNN_BIASES[spec.bias]) == 1:
        raise ValueError(f"bias={spec.bias!r} has one bias where torch has two; use bias='double_bias'")
    tensors = list(_torch_tensors(spec))
    own = {str(name).removeprefix(prefix): a for name, a in with_prefix(state, prefix).items()}
    _check_names({name for name, _, _ in tensors}, own, "the state")
    parts: dict[str, Any] = {}
    for name, shape, names in tensors:
        _check_array(prefix + name, own[name], shape)
        parts.update(zip(names, np.split(own[name], len(names)), strict=True))
    return tuple(parts[row.name] for row in rnn_parameters(spec))


def with_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the items of a state whose names begin with a prefix."""
    _check_prefix(prefix)
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a mapping from names to arrays, not {type(state).__name__}")
    return {name: value for name, value in state.items() if str(name).startswith(prefix)}


def to_torch(
    weights: Mapping[str, Any] | Sequence[Any], spec: RNNSpec, *, prefix: str = ""
) -> dict[str, Any]:
    """Return weights as new NumPy arrays by torch's names; a bias that the network lacks is zero."""
    import numpy as np

    _check_prefix(prefix)
    tensors, arrays = list(_torch_tensors(spec)), arrange_weights(spec, weights)
    parts = dict(zip((row.name for row in rnn_parameters(spec)), arrays, strict=True))
    missing = np.zeros(spec.hidden_size, arrays[0].dtype)  # a bias that is not there adds nothing
    return {
        prefix + name: np.concatenate([parts.get(part, missing) for part in names])
        for name, _, names in tensors
    }


def _check_prefix(prefix: Any) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, not {prefix!r}")


def _check_array(name: str, array: Any, shape: Shape) -> None:
    if not hasattr(array, "shape"):
        raise TypeError(f"{name} must be an array of shape {shape}, not {type(array).__name__}")
    if tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(array.shape)}; this network needs {shape}")


def _torch_tensors(spec: RNNSpec) -> Iterator[tuple[str, Shape, list[str]]]:
    """Yield name and shape of each torch tensor, in torch's order, and the parameters that it consists of."""
    if spec.input_mode == "skip":
        raise ValueError("torch has no skip input: its first layer always has matrices for the input")
    rows = len(spec.gates) * spec.hidden_size
    for layer in range(spec.num_layers):
        tensors: list[tuple[str, str, Shape]] = [
            ("weight_ih", "W", (rows, spec.layer_input_size(layer))),
            ("weight_hh", "R", (rows, spec.output_size)),
        ]
        if any(RNN_BIASES[spec.bias]):
            tensors += [("bias_ih", "bW", (rows,)), ("bias_hh", "bR", (rows,))]
        for ending in ("", "_reverse")[: spec.directions]:
            where = f"l{layer}{ending}"
            for tensor, letter, shape in tensors:
                yield f"{tensor}_{where}", shape, [f"{where}.{letter}_{gate}" for gate in spec.gates]
            if spec.projection_size:
                yield f"weight_hr_{where}", (spec.projection_size, spec.hidden_size), [f"{where}.P"]


def _check_names(wanted: set[str], given: Mapping[str, Any], what: str) -> None:
    missing, unknown = sorted(wanted - set(given)), sorted(map(str, set(given) - wanted))
    if missing or unknown:
        faults = [f"lacks {', '.join(missing)}"] * bool(missing)
        faults += [f"has {', '.join(unknown)}, which this network has not"] * bool(unknown)
        raise ValueError(f"{what} {' and '.join(faults)}")
