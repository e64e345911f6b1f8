"""The parameters of a recurrent network: which there are, of what shape, and where they lie."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import NamedTuple

from .rnn import RNN_BIASES, RNNSpec
from .specs import Shape

PROJECTION_ID = 8  # cuDNN's linLayerID of an LSTM's projection, after the 2 x 4 of its gates


class RNNParameter(NamedTuple):
    """One matrix, of shape (out, in) and in row-major order as cuDNN stores it, or one bias, of shape (out,).

    ``name`` says layer, direction and part: ``"l0.W_input"`` (of the input), ``"l0.R_input"`` (of the state),
    ``"l0.bW_input"`` and ``"l0.bR_input"`` (their biases), ``"l0_reverse.P"`` (a projection).
    """

    name: str
    pseudo_layer: int
    lin_layer_id: int
    kind: str
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def rnn_parameters(spec: RNNSpec) -> tuple[RNNParameter, ...]:
    """The parameters of a network, by pseudo layer, then cuDNN's linLayerID, a matrix before its bias.

    With G gates, ids 0 to G - 1 multiply the input and G to 2 G - 1 the state; 8 is an LSTM's projection,
    which has no bias. The first layer of a network with skip input has no matrices for its input; which
    biases there are depends on the bias mode.

    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> for row in rnn_parameters(rnn_spec("rnn_tanh", 5, 4, bias="single_rec_bias")):
    ...     print(*row)
    l0.W_hidden 0 0 matrix (4, 5)
    l0.R_hidden 0 1 matrix (4, 4)
    l0.bR_hidden 0 1 bias (4,)
    """
    hidden, rows = spec.hidden_size, []
    for pseudo_layer in range(spec.pseudo_layers):
        layer, backwards = divmod(pseudo_layer, spec.directions)
        where = f"l{layer}{'_reverse' * backwards}"
        skipped = layer == 0 and spec.input_mode == "skip"
        sizes = (0 if skipped else spec.layer_input_size(layer), spec.output_size)
        parts = zip("WR", sizes, RNN_BIASES[spec.bias], strict=True)
        for first_id, (letter, size, biased) in zip((0, len(spec.gates)), parts, strict=True):
            for lin_layer_id, gate in enumerate(spec.gates, first_id):
                at = (pseudo_layer, lin_layer_id)
                if size:
                    rows.append(RNNParameter(f"{where}.{letter}_{gate}", *at, "matrix", (hidden, size)))
                if biased:
                    rows.append(RNNParameter(f"{where}.b{letter}_{gate}", *at, "bias", (hidden,)))
        if spec.projection_size:
            shape = (spec.projection_size, hidden)
            rows.append(RNNParameter(f"{where}.P", pseudo_layer, PROJECTION_ID, "matrix", shape))
    return tuple(rows)


def rnn_offsets(spec: RNNSpec) -> tuple[int, ...]:
    """Return the offset of each row of :func:`rnn_parameters` in the weight space, in elements.

    cuDNN lays out all matrices in the order of the rows, then all biases likewise, contiguously.

    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> rnn_offsets(rnn_spec("rnn_tanh", 5, 4))
    (0, 36, 20, 40)
    """
    rows = rnn_parameters(spec)
    order = sorted(range(len(rows)), key=lambda index: rows[index].kind == "bias")  # stable
    starts = accumulate((rows[index].size for index in order), initial=0)
    offsets = dict(zip(order, starts, strict=False))  # the last start is the end
    return tuple(offsets[index] for index in range(len(rows)))


def rnn_weight_size(spec: RNNSpec) -> int:
    """Number of elements of all parameters together.

    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> rnn_weight_size(rnn_spec("lstm", 32, 16))
    3200
    """
    return sum(row.size for row in rnn_parameters(spec))
