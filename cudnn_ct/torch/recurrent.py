"""Recurrent networks on tensors of PyTorch, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..shapes.rnn import RNN_GATES
from ..typing import RNNMode
from .operators import call, only_kernel, recorded

__all__ = ["RecurrentResult", "rnn"]


class RecurrentResult(NamedTuple):
    """Output and last states of a network; ``cy`` is None unless it is an LSTM."""

    y: Tensor
    hy: Tensor
    cy: Tensor | None


def rnn(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    mode: RNNMode = "lstm",
    bidirectional: bool = False,
    batch_first: bool = False,
    batch_sizes: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
) -> RecurrentResult:
    """Run a recurrent network over sequences, as :class:`torch.nn.LSTM`, ``GRU`` or ``RNN``.

    Parameters
    ----------
    x : tensor, shape (T, B, input size), float16 | bfloat16 | float32 | float64
        Shape (B, T, input size) with ``batch_first``. With ``batch_sizes`` the data of a
        :class:`torch.nn.utils.rnn.PackedSequence`.
    weights : sequence of tensors, dtype of x
        The parameters of a module of torch, in its order. Their shapes state the sizes, the number of layers,
        and whether there are biases and projections.
    h0 : tensor, shape (layers * directions, B, output size), dtype of x, optional
    c0 : tensor, shape (layers * directions, B, hidden size), dtype of x, optional; "lstm" only
        The first states, zero by default.
    mode : {"lstm", "gru", "rnn_relu", "rnn_tanh"}
    bidirectional, batch_first : bool
    batch_sizes : int64 tensor in host memory, shape (T,), optional
    dropout : float
        The probability of zeros between layers in training, by the random numbers of torch.
    training : bool

    Returns
    -------
    RecurrentResult
        ``y``, like x with ``directions * output size`` for the input size; ``hy`` and ``cy``, like h0 and c0.

    Raises
    ------
    ValueError
        Shapes or parameters do not match.

    Notes
    -----
    :meth:`cudnn_ct.RNN.forward`. The gradient runs the network again. Weights are copied into one tensor,
    unless they are not recorded for gradients and lie one behind another, as
    :meth:`torch.nn.LSTM.flatten_parameters` places them.
    """
    if mode not in RNN_GATES:
        raise ValueError(f"mode must be one of {', '.join(RNN_GATES)}: got {mode!r}")
    if c0 is not None and mode != "lstm":
        raise ValueError(f"c0 is for 'lstm' only: got mode={mode!r}")
    directions, hidden = 1 + bidirectional, int(weights[0].shape[0]) // len(RNN_GATES[mode])
    output = int(weights[1].shape[1])
    matrices, biases = ([one for one in weights if (one.dim() == 1) == flat] for flat in (False, True))
    of_layer = directions * (2 + (2 if biases else 0) + (output != hidden))
    layers, left = divmod(len(weights), of_layer)
    if left:
        count = len(weights)
        raise ValueError(f"weights has {count} tensors, expected {of_layer} for each layer of this {mode}")
    if layers > 1 and training and dropout:
        facts: dict[str, Any] = {"mode": mode, "bidirectional": bidirectional}
        facts |= {"batch_first": batch_first, "batch_sizes": batch_sizes}
        parts = []
        for layer in range(layers):
            own = slice(layer * directions, (layer + 1) * directions)
            h, c = (None if one is None else one[own] for one in (h0, c0))
            parts.append(rnn(x, weights[layer * of_layer : (layer + 1) * of_layer], h, c, **facts))
            x = torch.nn.functional.dropout(parts[-1].y, dropout)
        cells = [one.cy for one in parts if one.cy is not None]
        hy = torch.cat([one.hy for one in parts])
        return RecurrentResult(parts[-1].y, hy, torch.cat(cells) if cells else None)
    lengths = None if batch_sizes is None else _lengths(batch_sizes)
    params = (
        *(hidden, mode, layers, "bidirectional" if bidirectional else "unidirectional"),
        *("double_bias" if biases else "no_bias", 0 if output == hidden else output),
        *("packed" if lengths is not None else "batch_major" if batch_first else "sequence_major", lengths),
    )
    w = _joined(matrices + biases)
    y, hy, *cy = _lstm(x, w, h0, c0, *params) if mode == "lstm" else _rnn(x, w, h0, *params)
    return RecurrentResult(y, hy, cy[0] if cy else None)


def _lengths(batch_sizes: Tensor) -> list[int]:
    """Return the number of steps of each sequence for the number of sequences of each step."""
    sizes: list[int] = batch_sizes.tolist()
    ended = zip(sizes, [*sizes[1:], 0], strict=True)
    lengths = [step for step, (now, after) in enumerate(ended, 1) for _ in range(now - after)]
    return lengths[::-1]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one behind another: a view if they lie so in memory, else a copy."""
    first = parts[0]
    seen = torch.compiler.is_compiling() or torch.is_autocast_enabled() or recorded(*parts)
    if not seen and only_kernel(parts) and _adjacent(parts):
        size = sum(one.numel() for one in parts)
        if first.storage_offset() + size <= first.untyped_storage().nbytes() // first.element_size():
            return first.as_strided((size,), (1,))
    return torch.cat([one.reshape(-1) for one in parts])


def _adjacent(parts: Sequence[Tensor]) -> bool:
    end, dtype = parts[0].data_ptr(), parts[0].dtype
    for one in parts:
        if one.data_ptr() != end or one.dtype != dtype or not one.is_contiguous():
            return False
        end += one.numel() * one.element_size()
    return True


_lstm = call("lstm")
_rnn = call("rnn")
