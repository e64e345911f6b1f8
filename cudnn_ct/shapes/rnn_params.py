"""The parameters of a recurrent network: names, shapes and offsets in the array of weights."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from .rnn import RNN_BIASES, RNNSpec
from .specs import Shape

PROJECTION_ID = 8  # cuDNN's linLayerID of an LSTM's projection, after the 2 x 4 of its gates


class RNNParameter(NamedTuple):
    """One matrix, of shape (out, in) and in row-major order as cuDNN stores it, or one bias, of shape (out,).

    ``name`` has layer, direction and part: ``"l0.W_input"`` (of the input), ``"l0.R_input"`` (of the state),
    ``"l0.bW_input"`` and ``"l0.bR_input"`` (their biases), ``"l0_reverse.P"`` (a projection). ``offset`` is
    its place in the array of weights, in elements.
    """

    name: str
    pseudo_layer: int
    lin_layer_id: int
    kind: str
    shape: Shape
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def view(self, weights: Any) -> Any:
        """Return the parameter as a view of a NumPy array of all weights."""
        return weights[self.offset : self.offset + self.size].reshape(self.shape)


def rnn_parameters(spec: RNNSpec) -> tuple[RNNParameter, ...]:
    """Return the parameters of a network, by pseudo layer, then cuDNN's linLayerID, a matrix before its bias.

    With G gates, ids 0 to G - 1 multiply the input and G to 2 G - 1 the state; 8 is an LSTM's projection,
    which has no bias. The first layer of a network with skip input has no matrices for its input. In memory
    all matrices come before all biases.

    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> for row in rnn_parameters(rnn_spec("rnn_tanh", 5, 4, bias="single_inp_bias")):
    ...     print(*row)
    l0.W_hidden 0 0 matrix (4, 5) 0
    l0.bW_hidden 0 0 bias (4,) 36
    l0.R_hidden 0 1 matrix (4, 4) 20
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
    offsets, end = {}, 0
    for row in sorted(rows, key=lambda row: row.kind == "bias"):
        offsets[row.name] = end
        end += row.size
    return tuple(row._replace(offset=offsets[row.name]) for row in rows)


def rnn_weight_size(spec: RNNSpec) -> int:
    """Return the number of elements of all parameters together."""
    return sum(row.size for row in rnn_parameters(spec))
