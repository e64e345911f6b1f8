"""The meaning of recurrent networks.

No reference of an operation, since on a device a network is an object, :class:`cudnn_ct.RNN`, with weights in
one piece. Gradients go by backpropagation through time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype
from ..shapes.parse import as_float
from ..shapes.rnn import RNNSpec
from ..shapes.rnn_params import rnn_parameters
from ..shapes.rnn_weights import arrange_weights, listed
from ..shapes.sequences import RNNGradients, RNNResult, RNNShapes, check_rnn_operands, check_states
from ._cast import Array, Float64, round_once, wide
from .rnn_layer import Layer, Pass, flat_weights, layer_backward, layer_forward, layers_of

__all__ = ["rnn", "rnn_backward"]

Weights = Mapping[str, Array] | Sequence[Array]


def rnn(
    x: npt.ArrayLike,
    weights: Weights,
    spec: RNNSpec,
    *,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    lengths: Iterable[int] | None = None,
    padding: float = 0.0,
    masks: npt.ArrayLike | None = None,
) -> RNNResult[Array]:
    """Run a recurrent network over sequences, in float64; results are rounded once at the end.

    With the input x and the state h before a step, each gate k has ``a_k = W_k x + bW_k`` and
    ``q_k = R_k h + bR_k``; with skip input, ``a_k = x + bW_k`` in the first layer; a bias that the bias mode
    does without is zero. New states are, with products element by element and s for 1 / (1 + exp(-v)) ::

        rnn_relu   h' = max(a + q, 0)
        rnn_tanh   h' = tanh(a + q)
        lstm       i, f, o = s(a_k + q_k)        g = tanh(a_g + q_g)       (g is the gate called "cell")
                   c' = f * c + i * g            h' = o * tanh(c'), with a projection P (o * tanh(c'))
        gru        r, z = s(a_k + q_k)           n = tanh(a_n + r * q_n)
                   h' = (1 - z) * n + z * h

    Where cells are clipped, c and c' are where they are used on the right; the c that is returned is not.

    A bidirectional layer runs a second cell over each sequence from its own last step to its first; both
    outputs side by side, first the forward one, are the input of the next layer.

    Parameters
    ----------
    x : array, shape (T, B, input_size), float16 | bfloat16 | float32 | float64
        What is past the end of a sequence is never looked at.
    weights : mapping by names, or sequence in the order, of ``rnn_parameters(spec)``
        Matrices of shape (out, in) and biases of shape (out,), of the dtype of ``x``.
    spec : RNNSpec
        From ``rnn_spec``. What only matters on a device is not regarded; nor is dropout, see ``masks``.
    h0 : array, shape (layers * directions, B, output_size), optional
        The states before the first step; zero by default. All states are in the order of pseudo layers: the
        first layer forwards, the first layer backwards, the second layer forwards, and so on.
    c0 : array, shape (layers * directions, B, hidden_size), optional, for "lstm"
    lengths : B ints, 0 to T, in any order, optional
        The number of steps of each sequence; T by default.
    padding : float
        What the output is past the end of a sequence.
    masks : array, shape (layers - 1, T, B, directions * output_size), optional
        What the output of each layer but the last is multiplied by before the next: for dropout with
        probability p, 0 where an element is dropped and 1 / (1 - p) elsewhere.

    Returns
    -------
    RNNResult
        ``y``, shape (T, B, directions * output_size); ``hy`` and ``cy``, as ``h0`` and ``c0``: the states
        after each sequence's last step, which backwards is its first; those before where it has no step.
        ``cy`` is None for a mode without cells.

    Raises
    ------
    TypeError
        A dtype is not that of the network, or ``spec``, ``weights`` or ``padding`` is none.
    ValueError
        Shapes, lengths or weights do not fit; the message has the numbers.

    Examples
    --------
    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> add = rnn_spec("rnn_relu", 1, 1, input_mode="skip", bias="no_bias", dtype="float64")
    >>> x = np.array([[[1.0], [1.0]], [[2.0], [2.0]], [[3.0], [3.0]]])
    >>> y, hy, cy = rnn(x, [np.ones((1, 1))], add, lengths=[3, 2], padding=-1)
    >>> y[:, 0, 0], y[:, 1, 0], hy.ravel()
    (array([1., 3., 6.]), array([ 1.,  3., -1.]), array([6., 3.]))
    """
    run = _Run.over(x, weights, spec, h0, c0, lengths, masks)
    dtype = as_dtype(spec.dtype).numpy
    y = np.where(run.active[..., None], run.output, as_float(padding, "padding"))
    h, c = (np.stack([getattr(done, name) for done in run.passes]) for name in ("h", "c"))
    return RNNResult(
        round_once(y, dtype), round_once(h, dtype), round_once(c, dtype) if spec.has_cells else None
    )


def rnn_backward(
    x: npt.ArrayLike,
    weights: Weights,
    spec: RNNSpec,
    dy: npt.ArrayLike | None = None,
    *,
    dhy: npt.ArrayLike | None = None,
    dcy: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    lengths: Iterable[int] | None = None,
    masks: npt.ArrayLike | None = None,
) -> RNNGradients[Array]:
    """Compute all gradients of :func:`rnn` by backpropagation through time; each is rounded once at the end.

    Nothing passes through a cell that was clipped; through relu at 0, as in cuDNN, all does.

    Parameters
    ----------
    x, weights, spec, h0, c0, lengths, masks
        As in :func:`rnn`; the operands of the forward step.
    dy : array, shape (T, B, directions * output_size), optional
        What is past the end of a sequence is never looked at.
    dhy, dcy : array, as ``hy`` and ``cy``, optional
        Gradients that are missing are zero.

    Returns
    -------
    RNNGradients
        ``dx``, as ``x``, zero past the end of a sequence; ``dh0`` and ``dc0``, as ``hy`` and ``cy``;
        ``dweights``, in the order of ``rnn_parameters(spec)``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`rnn`; also where a gradient has another shape than what it is of.

    Examples
    --------
    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> add = rnn_spec("rnn_relu", 1, 1, input_mode="skip", bias="no_bias", dtype="float64")
    >>> x = np.array([[[1.0]], [[2.0]], [[3.0]]])
    >>> dx, dh0, dc0, (dr,) = rnn_backward(x, [np.ones((1, 1))], add, np.ones((3, 1, 1)))
    >>> dx.ravel(), dh0.ravel(), dr.ravel()
    (array([3., 2., 1.]), array([3.]), array([5.]))
    """
    run = _Run.over(x, weights, spec, h0, c0, lengths, masks)
    gradients = {"dy": dy, "dhy": dhy, "dcy": dcy}
    arrays = {name: np.asarray(array) for name, array in gradients.items() if array is not None}
    if "dy" in arrays and arrays["dy"].shape != run.output.shape:
        raise ValueError(f"dy has shape {arrays['dy'].shape}; y has {run.output.shape}")
    check_states(spec, run.shapes, **{name: array.shape for name, array in arrays.items() if name != "dy"})
    one_dtype("a recurrent network", network=spec.dtype, **{n: array.dtype for n, array in arrays.items()})
    zeros = {"dy": run.output, "dhy": run.h0, "dcy": run.c0}
    d = {name: wide(arrays[name]) if name in arrays else np.zeros_like(zeros[name]) for name in zeros}

    dtype, size = as_dtype(spec.dtype).numpy, spec.output_size
    dlayers: list[Layer] = []
    dh0, dc0 = np.zeros_like(run.h0), np.zeros_like(run.c0)
    dout = d["dy"]
    for layer in reversed(range(spec.num_layers)):
        x_in, dx = run.inputs[layer], np.zeros_like(run.inputs[layer])
        for direction in reversed(range(spec.directions)):
            i = layer * spec.directions + direction
            own = dout[..., direction * size : (direction + 1) * size]
            dx_own, dh0[i], dc0[i], dlayer = layer_backward(
                spec, run.layers[i], run.passes[i], x_in, run.active, own, d["dhy"][i], d["dcy"][i]
            )
            dx += dx_own
            dlayers.insert(0, dlayer)
        dout = dx if layer == 0 or run.masks is None else dx * run.masks[layer - 1]
    return RNNGradients(
        round_once(dout, dtype),
        round_once(dh0, dtype),
        round_once(dc0, dtype) if spec.has_cells else None,
        tuple(round_once(dw, dtype) for dw in flat_weights(spec, dlayers)),
    )


class _Run(NamedTuple):
    """A run forward, with all that the way back needs."""

    shapes: RNNShapes
    active: Array  # (T, B): which steps exist
    masks: Float64 | None
    h0: Float64
    c0: Float64
    layers: list[Layer]
    inputs: list[Float64]  # of each layer
    passes: list[Pass]  # by pseudo layer
    output: Float64  # of the last layer, zero past the ends

    @classmethod
    def over(
        cls, x: Any, weights: Weights, spec: RNNSpec, h0: Any, c0: Any, lengths: Any, masks: Any
    ) -> _Run:
        if not isinstance(spec, RNNSpec):
            raise TypeError(f"spec must be an RNNSpec, not {type(spec).__name__}")
        given = {"h0": h0, "c0": c0, "masks": masks}
        arrays = {name: np.asarray(array) for name, array in given.items() if array is not None}
        arrays["x"] = np.asarray(x)
        shape = {name: array.shape for name, array in arrays.items()}
        shapes, found = check_rnn_operands(spec, shape["x"], shape.get("h0"), shape.get("c0"), lengths)
        ordered = _ordered(spec, weights)
        named = {row.name: array for row, array in zip(rnn_parameters(spec), ordered, strict=True)}
        dtypes = {name: array.dtype for name, array in (arrays | named).items() if name != "masks"}
        one_dtype("a recurrent network", network=spec.dtype, **dtypes)
        between = (spec.num_layers - 1, *shapes.y)
        if shape.get("masks", between) != between:
            raise ValueError(f"masks have shape {shape['masks']}; this network needs {between}")

        steps, batch, _ = shape["x"]
        active = np.arange(steps)[:, None] < np.array(found, int)
        values = {name: wide(array) for name, array in arrays.items()}
        h = values.get("h0", np.zeros(shapes.h))
        c = values.get("c0", np.zeros((spec.pseudo_layers, batch, spec.hidden_size)))
        run = cls(shapes, active, values.get("masks"), h, c, layers_of(spec, ordered), [], [], np.empty(0))
        current = values["x"]
        for layer in range(spec.num_layers):
            if layer and run.masks is not None:
                current = current * run.masks[layer - 1]
            run.inputs.append(current)
            for direction in range(spec.directions):
                i = layer * spec.directions + direction
                run.passes.append(
                    layer_forward(spec, run.layers[i], current, active, h[i], c[i], bool(direction))
                )
            current = np.concatenate([done.y for done in run.passes[-spec.directions :]], axis=-1)
        return run._replace(output=current)


def _ordered(spec: RNNSpec, weights: Weights) -> tuple[Array, ...]:
    if isinstance(weights, Mapping):
        return arrange_weights(spec, {name: np.asarray(array) for name, array in weights.items()})
    return arrange_weights(spec, [np.asarray(array) for array in listed(weights)])
