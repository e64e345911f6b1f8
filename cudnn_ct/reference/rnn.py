"""Recurrent networks, and their gradients by backpropagation through time: layers, and whole networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import as_float, one_dtype
from ..shapes.rnn import RNNSpec, arrange_weights, listed, rnn_parameters, rnn_weight_size
from ..shapes.sequences import RNNGradients, RNNResult, RNNShapes, check_rnn_operands, check_states
from ._definition import Array, Float64, present, required, round_once, wide
from .layers import sigmoid

# --- one step of each kind of recurrent cell, forward and backward, for gates of shape (B, gates, hidden) --

Clip = tuple[float, float] | None
Saved = tuple[Float64, ...]
Step = tuple[Float64, Float64, Saved]
Gradients = tuple[Float64, Float64, Float64, Float64]
Curve = Callable[[Float64], Float64]


class Cell(NamedTuple):
    """One step forward and backward.

    ``forward`` takes the contributions of the input and of the state to the gates, and h and c before the
    step; it returns h before its projection, c, and values for ``backward``. That takes these values and the
    gradients of h and c, and returns those of both contributions, of h past the gates, and of c.
    """

    forward: Callable[[Float64, Float64, Float64, Float64, Clip], Step]
    backward: Callable[[Saved, Float64, Float64, Clip], Gradients]


_ZERO = np.zeros(())


def _plain(curve: Curve, slope: Curve) -> Cell:
    """Return a cell with h' = curve(a + q)."""

    def forward(a: Float64, q: Float64, _h: Float64, c: Float64, _: Clip) -> Step:
        v = a[:, 0] + q[:, 0]
        return curve(v), c, (v,)

    def backward(saved: Saved, dh: Float64, dc: Float64, _: Clip) -> Gradients:
        da = (dh * slope(saved[0]))[:, None]
        return da, da, _ZERO, dc

    return Cell(forward, backward)


def _lstm_forward(a: Float64, q: Float64, _h: Float64, c: Float64, clip: Clip) -> Step:
    """c' = f * clip(c) + i * g, h' = o * tanh(clip(c')): cells are clipped where they are used."""
    i, f, g, o = np.moveaxis(a + q, 1, 0)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * _clipped(c, clip) + i * g
    return o * np.tanh(_clipped(new, clip)), new, (i, f, g, o, c, new)


def _lstm_backward(saved: Saved, dh: Float64, dc: Float64, clip: Clip) -> Gradients:
    i, f, g, o, c, new = saved
    t = np.tanh(_clipped(new, clip))
    dnew = dc + dh * o * (1 - t * t) * _clip_slope(new, clip)
    di, df, dg, do = dnew * g, dnew * _clipped(c, clip), dnew * i, dh * t
    da = np.stack([di * i * (1 - i), df * f * (1 - f), dg * (1 - g * g), do * o * (1 - o)], 1)
    return da, da, _ZERO, dnew * f * _clip_slope(c, clip)


def _clipped(c: Float64, clip: Clip) -> Float64:
    return np.clip(c, *clip) if clip else c


def _clip_slope(c: Float64, clip: Clip) -> Float64:
    return np.where((clip[0] <= c) & (c <= clip[1]), 1.0, 0.0) if clip else np.ones(())


def _gru_forward(a: Float64, q: Float64, h: Float64, c: Float64, _: Clip) -> Step:
    """n = tanh(a_n + r * q_n), h' = (1 - z) * n + z * h; r applies after the product with R."""
    r, z = sigmoid(a[:, 0] + q[:, 0]), sigmoid(a[:, 1] + q[:, 1])
    n = np.tanh(a[:, 2] + r * q[:, 2])
    return (1 - z) * n + z * h, c, (r, z, n, q[:, 2], h)


def _gru_backward(saved: Saved, dh: Float64, dc: Float64, _: Clip) -> Gradients:
    r, z, n, q, h = saved
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * q * r * (1 - r), dh * (h - n) * z * (1 - z)
    return np.stack([dr, dz, dn], 1), np.stack([dr, dz, dn * r], 1), dh * z, dc


CELLS = {
    # At 0, cuDNN's slope of a relu is 1 in a recurrent network, and 0 in an activation.
    "rnn_relu": _plain(lambda v: np.maximum(v, 0), lambda v: np.where(v >= 0, 1.0, 0.0)),
    "rnn_tanh": _plain(np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "lstm": Cell(_lstm_forward, _lstm_backward),
    "gru": Cell(_gru_forward, _gru_backward),
}


# --- layers ------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """The parameters of a pseudo layer, or their gradients."""

    w: Float64  # (gates, hidden, in), empty for skip input
    r: Float64  # (gates, hidden, out)
    bw: Float64  # (gates, hidden), zero if the network has no biases
    br: Float64  # as bw
    p: Float64  # (projected, hidden), empty without a projection


class Pass(NamedTuple):
    """Inputs, outputs and last states of a layer in one direction, and the values that its gradient needs."""

    x: Float64
    y: Float64
    h: Float64
    c: Float64
    # For each step that was run, and the sequences that have it: the step, h before, the new h before its
    # projection, and the values saved by the cell.
    steps: list[tuple[int, Float64, Float64, Saved]]


def layers_of(spec: RNNSpec, flat: Float64) -> list[Layer]:
    """Return the parameters of each pseudo layer as views of an array of all weights."""
    gates, hidden = len(spec.gates), spec.hidden_size
    layers = []
    for pseudo_layer in range(spec.pseudo_layers):
        parts: dict[str, Float64] = {}
        for row in rnn_parameters(spec):  # those of one letter are adjacent
            letter = row.name.split(".")[1].split("_")[0]
            if row.pseudo_layer == pseudo_layer and letter not in parts:
                count = 1 if letter == "P" else gates
                end = row.offset + count * row.size
                parts[letter] = flat[row.offset : end].reshape(count, *row.shape)
        layers.append(
            Layer(
                w=parts.get("W", np.zeros((gates, hidden, 0))),
                r=parts["R"],
                bw=parts.get("bW", np.zeros((gates, hidden))),
                br=parts.get("bR", np.zeros((gates, hidden))),
                p=parts.get("P", np.zeros((1, 0, hidden)))[0],
            )
        )
    return layers


# Infinities and NaN are valid data.
@np.errstate(all="ignore")
def layer_forward(
    spec: RNNSpec, layer: Layer, x: Float64, active: Array, h: Float64, c: Float64, backwards: bool
) -> Pass:
    """Run over sequences; ``active``, shape (T, B), contains which steps exist.

    A step that does not exist leaves the states unchanged, so a backward direction starts at the last step
    of each sequence.
    """
    forward, steps = CELLS[spec.mode].forward, []
    y, h, c = np.zeros((*active.shape, spec.output_size)), h.copy(), c.copy()
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        now = active[t]
        h_before = h[now]
        a = np.einsum("gij,bj->bgi", layer.w, x[t, now]) if layer.w.size else x[t, now][:, None]
        q = np.einsum("gij,bj->bgi", layer.r, h_before)
        new_h, c[now], saved = forward(a + layer.bw, q + layer.br, h_before, c[now], spec.clip)
        h[now] = new_h @ layer.p.T if spec.projection_size else new_h
        y[t, now] = h[now]
        steps.append((t, h_before, new_h, saved))
    return Pass(x, y, h, c, steps)


@np.errstate(all="ignore")
def layer_backward(
    spec: RNNSpec, layer: Layer, d: Layer, done: Pass, active: Array, dy: Float64, dh: Float64, dc: Float64
) -> tuple[Float64, Float64, Float64]:
    """Return the gradients of the input and of the first states, and add those of the parameters to ``d``."""
    backward = CELLS[spec.mode].backward
    x, dx, dh, dc = done.x, np.zeros(done.x.shape), dh.copy(), dc.copy()
    for t, h_before, new_h, saved in reversed(done.steps):
        now = active[t]
        dout = dh[now] + dy[t, now]
        if spec.projection_size:
            d.p[...] += dout.T @ new_h
            dout = dout @ layer.p
        da, dq, dh_past_q, dc[now] = backward(saved, dout, dc[now], spec.clip)
        d.bw[...] += da.sum(0)
        d.br[...] += dq.sum(0)
        d.r[...] += np.einsum("bgi,bj->gij", dq, h_before)
        dh[now] = np.einsum("bgi,gij->bj", dq, layer.r) + dh_past_q
        if layer.w.size:
            d.w[...] += np.einsum("bgi,bj->gij", da, x[t, now])
            dx[t, now] = np.einsum("bgi,gij->bj", da, layer.w)
        else:
            dx[t, now] = da.sum(1)
    return dx, dh, dc


# --- networks ----------------------------------------------------------------------------------------------


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
    arrays = present(dy=dy, dhy=dhy, dcy=dcy)
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
        arrays = required(x=x) | present(h0=h0, c0=c0, masks=masks)
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
    if isinstance(weights, Mapping):
        ordered = arrange_weights(spec, {name: np.asarray(array) for name, array in weights.items()})
    else:
        ordered = arrange_weights(spec, [np.asarray(array) for array in listed(weights)])
    return {row.name: array for row, array in zip(rnn_parameters(spec), ordered, strict=True)}
