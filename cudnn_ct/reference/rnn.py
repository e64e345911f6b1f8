"""Recurrent networks, and their gradients by backpropagation through time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype
from ..shapes.parse import as_float
from ..shapes.rnn import RNNSpec, rnn_parameters, rnn_weight_size
from ..shapes.rnn_weights import arrange_weights, listed
from ..shapes.sequences import RNNGradients, RNNResult, RNNShapes, check_rnn_operands, check_states
from ._cast import Array, Float64, round_once, wide
from .rnn_layer import Layer, Pass, layer_backward, layer_forward, layers_of

Weights = Mapping[str, Array] | Sequence[Array]


def rnn(
    x: ArrayLike,
    weights: Weights,
    spec: RNNSpec,
    *,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    lengths: Iterable[int] | None = None,
    padding: float = 0.0,
    masks: ArrayLike | None = None,
) -> RNNResult[Array]:
    """Run a recurrent network over sequences (T, B, input_size). See :meth:`cudnn_ct.RNN.forward`.

    With a = W x + bW, q = R h + bR for each gate, and s(v) = 1 / (1 + exp(-v)) ::

        rnn_relu   h' = max(a + q, 0)
        rnn_tanh   h' = tanh(a + q)
        lstm       i, f, o = s(a_k + q_k)        g = tanh(a_g + q_g)       (g is the gate called "cell")
                   c' = f * c + i * g            h' = o * tanh(c'), with a projection P (o * tanh(c'))
        gru        r, z = s(a_k + q_k)           n = tanh(a_n + r * q_n)
                   h' = (1 - z) * n + z * h

    ``weights`` are a mapping by names, or a sequence in the order, of ``rnn_parameters(spec)``. Skip input
    has a = x + bW in the first layer. Cells are clipped where they are used, not where they are
    returned. ``padding`` is the output past the end of a sequence. ``masks``, shape (layers - 1, T, B,
    directions * output_size), are factors of the outputs between layers, for dropout.
    """
    run = _Run.over(x, weights, spec, h0, c0, lengths, masks)
    dtype = as_dtype(spec.dtype).numpy
    y = np.where(run.active[..., None], run.output, as_float(padding, "padding"))
    h, c = (np.stack([getattr(done, name) for done in run.passes]) for name in ("h", "c"))
    return RNNResult(
        round_once(y, dtype), round_once(h, dtype), round_once(c, dtype) if spec.has_cells else None
    )


def rnn_backward(
    x: ArrayLike,
    weights: Weights,
    spec: RNNSpec,
    dy: ArrayLike | None = None,
    *,
    dhy: ArrayLike | None = None,
    dcy: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    lengths: Iterable[int] | None = None,
    masks: ArrayLike | None = None,
) -> RNNGradients[Array]:
    """Compute the gradients of :func:`rnn` through time. See :meth:`cudnn_ct.RNN.backward_data`.

    Missing gradients are zero. Nothing passes through a clipped cell; as in cuDNN, relu has slope 1 at 0.
    """
    run = _Run.over(x, weights, spec, h0, c0, lengths, masks)
    arrays = _arrays(dy=dy, dhy=dhy, dcy=dcy)
    if "dy" in arrays and arrays["dy"].shape != run.output.shape:
        raise ValueError(f"dy has shape {arrays['dy'].shape}; y has {run.output.shape}")
    check_states(spec, run.shapes, **{name: array.shape for name, array in arrays.items() if name != "dy"})
    one_dtype("a recurrent network", network=spec.dtype, **{n: array.dtype for n, array in arrays.items()})
    zeros = {"dy": run.output, "dhy": run.h0, "dcy": run.c0}
    d = {name: wide(arrays[name]) if name in arrays else np.zeros_like(zeros[name]) for name in zeros}

    dtype, size = as_dtype(spec.dtype).numpy, spec.output_size
    dweights = np.zeros(rnn_weight_size(spec))
    dlayers = layers_of(spec, dweights)
    dh0, dc0 = np.zeros_like(run.h0), np.zeros_like(run.c0)
    dout = d["dy"]
    for layer in reversed(range(spec.num_layers)):
        dx: Any = 0.0
        for direction in range(spec.directions):
            i = layer * spec.directions + direction
            own = dout[..., direction * size : (direction + 1) * size]
            layers = run.layers[i], dlayers[i], run.passes[i]
            dx_own, dh0[i], dc0[i] = layer_backward(spec, *layers, run.active, own, d["dhy"][i], d["dcy"][i])
            dx = dx + dx_own
        dout = dx if layer == 0 or run.masks is None else dx * run.masks[layer - 1]
    return RNNGradients(
        round_once(dout, dtype),
        round_once(dh0, dtype),
        round_once(dc0, dtype) if spec.has_cells else None,
        tuple(round_once(row.view(dweights), dtype) for row in rnn_parameters(spec)),
    )


class _Run(NamedTuple):
    """A forward pass, and the values that the backward pass needs."""

    shapes: RNNShapes
    active: Array  # (T, B): the steps that exist
    masks: Float64 | None
    h0: Float64
    c0: Float64
    layers: list[Layer]
    passes: list[Pass]  # by pseudo layer
    output: Float64  # of the last layer, zero past the ends of sequences

    @classmethod
    def over(
        cls, x: Any, weights: Weights, spec: RNNSpec, h0: Any, c0: Any, lengths: Any, masks: Any
    ) -> _Run:
        if not isinstance(spec, RNNSpec):
            raise TypeError(f"spec must be an RNNSpec, not {type(spec).__name__}")
        arrays = _arrays(x=np.asarray(x), h0=h0, c0=c0, masks=masks)
        shape = {name: array.shape for name, array in arrays.items()}
        shapes, found = check_rnn_operands(spec, shape["x"], shape.get("h0"), shape.get("c0"), lengths)
        named = _named(spec, weights)
        dtypes = {name: array.dtype for name, array in (arrays | named).items() if name != "masks"}
        one_dtype("a recurrent network", network=spec.dtype, **dtypes)
        between = (spec.num_layers - 1, *shapes.y)
        if shape.get("masks", between) != between:
            raise ValueError(f"masks have shape {shape['masks']}; this network needs {between}")

        steps, batch, _ = shape["x"]
        active = np.arange(steps)[:, None] < np.array(found, int)
        values = {name: wide(array) for name, array in arrays.items()}
        flat = np.zeros(rnn_weight_size(spec))
        for row in rnn_parameters(spec):
            row.view(flat)[...] = wide(named[row.name])
        h = values.get("h0", np.zeros(shapes.h))
        c = values.get("c0", np.zeros((spec.pseudo_layers, batch, spec.hidden_size)))
        run = cls(shapes, active, values.get("masks"), h, c, layers_of(spec, flat), [], np.empty(0))
        current = values["x"]
        for layer in range(spec.num_layers):
            if layer and run.masks is not None:
                current = current * run.masks[layer - 1]
            for direction in range(spec.directions):
                i = layer * spec.directions + direction
                run.passes.append(
                    layer_forward(spec, run.layers[i], current, active, h[i], c[i], bool(direction))
                )
            current = np.concatenate([done.y for done in run.passes[-spec.directions :]], axis=-1)
        return run._replace(output=current)


def _named(spec: RNNSpec, weights: Weights) -> dict[str, Array]:
    """Return the weights by name, as arrays."""
    if isinstance(weights, Mapping):
        ordered = arrange_weights(spec, {name: np.asarray(array) for name, array in weights.items()})
    else:
        ordered = arrange_weights(spec, [np.asarray(array) for array in listed(weights)])
    return {row.name: array for row, array in zip(rnn_parameters(spec), ordered, strict=True)}


def _arrays(**given: Any) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in given.items() if array is not None}
