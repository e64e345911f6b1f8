"""Recurrent networks on arrays of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..gradients.table import NETWORKS
from ..shapes.rnn import rnn_spec
from ..shapes.rnn import rnn_weight_size as size_of
from .calls import Params
from .operators import entering, known_params, operand, raw_call, without_gradient

__all__ = ["RecurrentResult", "rnn", "rnn_weight_size"]

Array = Any


class RecurrentResult(NamedTuple):
    """Output and last states of a network; ``cy`` is None unless it is an LSTM."""

    y: Array
    hy: Array
    cy: Array | None


def rnn_weight_size(
    mode: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    *,
    direction: str = "unidirectional",
    bias: str = "double_bias",
    projection_size: int = 0,
) -> int:
    """Return the number of elements of the weights of a network, which are one array.

    Parameters
    ----------
    mode, input_size, hidden_size, num_layers, direction, bias, projection_size
        As in :class:`cudnn_ct.RNN`, whose order of weights is that of the array.

    Returns
    -------
    int

    Raises
    ------
    ValueError, TypeError
        Parameters are out of range.
    """
    sizes = (mode, input_size, hidden_size, num_layers)
    return size_of(rnn_spec(*sizes, direction=direction, bias=bias, projection_size=projection_size))


def rnn(
    x: Array,
    w: Array,
    h0: Array | None = None,
    c0: Array | None = None,
    *,
    mode: str,
    hidden_size: int,
    num_layers: int = 1,
    direction: str = "unidirectional",
    bias: str = "double_bias",
    projection_size: int = 0,
    lengths: Sequence[int] | None = None,
) -> RecurrentResult:
    """Run a recurrent network over sequences.

    Parameters
    ----------
    x : array, shape (T, B, input size), float16 | bfloat16 | float32 | float64
    w : array, shape (weight size,), dtype of x
        See :func:`rnn_weight_size`.
    h0 : array, shape (layers * directions, B, output size), dtype of x, optional
    c0 : array, shape (layers * directions, B, hidden size), dtype of x, optional; "lstm" only
        The first states, zero by default.
    mode : {"lstm", "gru", "rnn_relu", "rnn_tanh"}
    hidden_size, num_layers, direction, bias, projection_size
        As in :class:`cudnn_ct.RNN`.
    lengths : B ints, optional
        The number of steps of each sequence, as numbers of Python; T by default.

    Returns
    -------
    RecurrentResult
        ``y``, shape (T, B, directions * output size), ``hy`` and ``cy``, like h0 and c0.

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :meth:`cudnn_ct.RNN.forward`. The gradient runs the network again, because cuDNN's reserve of the forward
    pass is not an array of XLA.
    """
    given = {
        "mode": mode, "hidden_size": hidden_size, "num_layers": num_layers, "direction": direction,
        "bias": bias, "projection_size": projection_size, "layout": "sequence_major",
        "lengths": lengths,
    }  # fmt: skip
    params = known_params(NETWORKS["lstm"], given)
    name = "lstm" if dict(params)["mode"] == "lstm" else "rnn"
    if c0 is not None and name != "lstm":
        raise ValueError(f"c0 is for 'lstm' only: got mode={mode!r}")
    states = [operand(one, word, optional=True) for one, word in ((h0, "h0"), (c0, "c0"))]
    operands = [operand(x, "x"), operand(w, "w"), *states]
    row = NETWORKS[name]
    found = _differentiable(name, params)(*entering(row, operands[: len(row.operands)]))
    return RecurrentResult(*found, *(None,) * (3 - len(found)))


@lru_cache(256)
def _differentiable(name: str, params: Params) -> Callable[..., tuple[Any, ...]]:
    @jax.custom_vjp
    def function(*operands: Any) -> tuple[Any, ...]:
        return raw_call(name, params, operands)

    def forward(*operands: Any) -> tuple[Any, Any]:
        return function(*operands), operands

    def backward(operands: Any, cotangents: Any) -> tuple[Any, ...]:
        made = [jnp.asarray(one, operands[0].dtype) for one in cotangents]
        found = without_gradient(f"{name}_backward", params)(*operands, *made)
        return tuple(None if one is None else gradient for one, gradient in zip(operands, found, strict=True))

    function.defvjp(forward, backward)
    return function
