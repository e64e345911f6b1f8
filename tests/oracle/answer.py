"""The answer of an independent implementation, and the arguments of public calls in one form.

Nothing here computes a result: `by_torch` and `by_loops` do that, each by itself. `magnitude` has the sizes
that errors are measured by.

``ANSWERS`` of either module maps the name of a public operation to ``solve(operands, arguments)``, which
returns answers by the names of results. Operands are float64 arrays by the names of the parameters of the
public function; None stands for one that is not given. Arguments are the others, as a caller writes them;
those that do not change the result (``algo``, ``alpha``, ``out``, ...) are ignored. Results are called ``y``
for a forward operation, ``dx``, ``dw`` or ``db`` for a gradient, and by their fields if the public function
returns a tuple.

===========================  ==============================================================================
operation                    operands, arguments and results with other names
===========================  ==============================================================================
``scale``, ``fill``          ``y`` is x afterwards: alpha is an argument of the operation itself
``affine_grid``              ``y`` is the grid; ``affine_grid_backward``: ``dtheta``
``batch_norm_training``      ``running_mean`` and ``running_var`` are operands before, and results after
``dropout``                  operand ``mask`` of bool, True for an element that stays; argument ``p``, the
                             probability that one is dropped
``ctc_loss``                 labels and lengths are operands or arguments; operand ``out`` is the gradient's
                             memory before the call, for ``out_of_bound="skip"``
``grid_sample_backward``,    argument ``u``: the unit roundoff of the grid, by default that of float32; it
``spatial_transformer...``   decides which places may be on either side of a pixel
``attention``                ``stats`` is a result if ``return_stats`` is True; lengths, offsets and the page
                             table are arguments, as lists of ints; argument ``mask``: whether the bias is a
                             mask of ones and zeros
``scaled_attention``         operands are float8 numbers, before ``descale_q`` and others are multiplied;
                             argument ``weights``: the dtype of q, which weights are rounded to
``RNN``                      operands x, h0 (or hx), c0 (or cx), lengths, dy, dhy, dcy, and ``weights``, a
                             dict by the names of ``ct.RNN.pack_params``; arguments ``mode``, ``num_layers``,
                             ``direction``, ``layout``, ``padding_value``, ``clip``; results ``y``, ``hy``,
                             ``cy``, and with an incoming gradient ``dx``, ``dhx``, ``dcx`` and
                             ``dweights/NAME`` for each of the weights. Dropout is 0.
===========================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Operands = Mapping[str, Any]
Arguments = Mapping[str, Any]
Values = dict[str, np.ndarray]
Pairs = list[tuple[int, int]]
Compute = Callable[[Operands, Arguments], Values]
Table = Mapping[str, Compute]
Scale = Callable[[Table, Operands, Arguments, Values], Values]


class Answer(NamedTuple):
    """The right result of a call, before ``alpha * value + beta * out`` and before rounding.

    Attributes
    ----------
    value : numpy.ndarray of float64; int64 for positions
    scale : numpy.ndarray of float64, shape of value
        A careful implementation that computes with the unit roundoff u has ``|got - value| <= c * u * scale``
        for a small c. It is 0 where the value is exact, or not finite.
    exact_only : bool
        The result has to be equal, as positions have to be.
    ambiguous : numpy.ndarray of bool, shape of value, optional
        Elements that the documentation leaves open: the choice between equal elements, for example.
    rounded : numpy.ndarray of float64, shape of value, optional
        The magnitude of intermediate results that are rounded to the dtype of the result; by default scale.
    """

    value: np.ndarray
    scale: np.ndarray
    exact_only: bool = False
    ambiguous: np.ndarray | None = None
    rounded: np.ndarray | None = None


Solver = Callable[[Operands, Arguments], dict[str, Answer]]


class Geometry(NamedTuple):
    """A window that moves over an image: one number for each spatial axis, one pair for padding."""

    window: list[int]
    stride: list[int]
    dilation: list[int]
    padding: Pairs

    def out(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of places that the window has on each spatial axis."""
        axes = zip(sizes, self.window, self.stride, self.dilation, self.padding, strict=True)
        return [(n + before + after - (k - 1) * d - 1) // s + 1 for n, k, s, d, (before, after) in axes]


class Conv(NamedTuple):
    """The parameters of a convolution; ``flip`` is for mode "convolution"."""

    geometry: Geometry
    groups: int
    flip: bool


def named(value: Any, default: str) -> str:
    """Return the name that an argument gives, in lower case."""
    return default if value is None else str(value).lower()


def activation_of(arguments: Arguments, name: str = "activation") -> tuple[str, float]:
    """Return the mode of an activation and its coefficient, for which 0 stands for 1 in a swish."""
    mode, coefficient = named(arguments.get(name), "relu"), arguments.get("coefficient", 0)
    return mode, coefficient or float(mode == "swish")


def absolute(operands: Operands) -> dict[str, Any]:
    """Return the absolute values of operands."""
    return {name: None if array is None else np.abs(array) for name, array in operands.items()}


def per_axis(value: Any, axes: int) -> list[int]:
    """Return one int for each axis."""
    return [int(value)] * axes if np.ndim(value) == 0 else [int(n) for n in value]


def padding_pairs(padding: Any, window: Sequence[int], dilation: Sequence[int]) -> Pairs:
    """Return the padding before and after each spatial axis.

    >>> padding_pairs("half", [3, 4], [1, 1]), padding_pairs("full", [3, 2], [1, 2])
    ([(1, 1), (2, 2)], [(2, 2), (2, 2)])
    """
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        if padding.lower() == "valid":
            return [(0, 0)] * len(spans)
        return [(n // 2, n // 2) if padding.lower() == "half" else (n - 1, n - 1) for n in spans]
    if np.ndim(padding) == 2:
        return [(int(before), int(after)) for before, after in padding]
    return [(n, n) for n in per_axis(padding, len(window))]


def conv_parameters(window: Sequence[int], arguments: Arguments) -> Conv:
    """Return the parameters of a convolution whose filter has this window."""
    axes = len(window)
    dilation = per_axis(arguments.get("dilation", 1), axes)
    geometry = Geometry(
        list(window),
        per_axis(arguments.get("stride", 1), axes),
        dilation,
        padding_pairs(arguments.get("padding", 0), window, dilation),
    )
    flip = named(arguments.get("mode"), "cross_correlation") == "convolution"
    return Conv(geometry, int(arguments.get("groups", 1)), flip)


def conv_transpose_output_shape(x: Sequence[int], w: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the image whose convolution with w has the shape of x."""
    (window, stride, dilation, padding), groups, _ = conv_parameters(w[2:], arguments)
    extra = per_axis(arguments.get("output_padding", 0), len(window))
    axes = zip(x[2:], window, stride, dilation, padding, extra, strict=True)
    sizes = [(n - 1) * s - sum(pair) + (k - 1) * d + 1 + more for n, k, s, d, pair, more in axes]
    return (x[0], w[1] * groups, *sizes)


def pool_geometry(shape: Sequence[int], arguments: Arguments) -> Geometry:
    """Return the window of a pooling of an image of this shape."""
    sizes, window = list(shape[2:]), arguments["window"]
    window = sizes if isinstance(window, str) else per_axis(window, len(sizes))
    stride, ones = arguments.get("stride"), [1] * len(sizes)
    strides = window if stride is None else per_axis(stride, len(sizes))
    return Geometry(window, strides, ones, padding_pairs(arguments.get("padding", 0), window, ones))


def pool_mode(arguments: Arguments) -> str:
    """Return "max", "average_inc_pad", "average_exc_pad" or "sum"."""
    mode = named(arguments.get("mode"), "max")
    others = {
        "max_deterministic": "max",
        "average": "average_inc_pad",
        "average_count_include_padding": "average_inc_pad",
        "average_count_exclude_padding": "average_exc_pad",
    }
    return others.get(mode, mode)


def propagates(arguments: Arguments) -> bool:
    """Return whether NaN is an extreme."""
    return bool(arguments.get("propagate_nan", True))


def axes_of(value: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, in order; all of them for None."""
    if value is None:
        return tuple(range(ndim))
    values = [value] if np.ndim(value) == 0 else list(value)
    return tuple(sorted(int(axis) % ndim for axis in values))


def softmax_axes(ndim: int, arguments: Arguments) -> tuple[int, ...]:
    """Return the axes that a softmax sums over."""
    if arguments.get("axis") is not None:
        return axes_of(arguments["axis"], ndim)
    return (1,) if named(arguments.get("mode"), "channel") == "channel" else tuple(range(1, ndim))


def norm_axes(ndim: int, arguments: Arguments) -> tuple[int, ...]:
    """Return the axes that a batch normalisation takes its statistics over."""
    spatial = named(arguments.get("mode"), "spatial").startswith("spatial")
    return (0, *range(2, ndim)) if spatial else (0,)


def norm_shape(shape: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the statistics: that of x, with 1 for the axes that they are over."""
    axes = norm_axes(len(shape), arguments)
    return tuple(1 if axis in axes else n for axis, n in enumerate(shape))


def transformed_shape(shape: Sequence[int], arguments: Arguments) -> tuple[int, ...]:
    """Return the shape of the result of a spatial transformer."""
    scales = (float(arguments.get("scale_height", 1)), float(arguments.get("scale_width", 1)))
    sizes = [int(np.ceil(n * scale)) for n, scale in zip(shape[2:], scales, strict=True)]
    return (*shape[:2], *sizes)


def window_of_channels(arguments: Arguments) -> tuple[int, int, int]:
    """Return n of a local response normalisation, and how many of its channels are before and after."""
    n = int(arguments.get("n", 5))
    return n, (n - 1) // 2, n // 2


def lrn_factors(arguments: Arguments) -> tuple[float, float, float]:
    """Return lrn_alpha, lrn_beta and k."""
    return arguments.get("lrn_alpha", 1e-4), arguments.get("lrn_beta", 0.75), arguments.get("k", 2)


def kept(operands: Operands, arguments: Arguments) -> tuple[Any, float]:
    """Return the mask of a dropout, with True for an element that stays, and the factor of those."""
    probability = arguments["p"] if "p" in arguments else arguments["probability"]
    return operands["mask"], 1 / (1 - float(probability))


# --- attention --------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """One sequence: its place in the batch, the places of its first tokens, and its lengths."""

    place: int
    first_query: int
    queries: int
    first_key: int
    keys: int


def attention_spans(operands: Operands, arguments: Arguments) -> list[Span]:
    """Return the sequences of a call. Packed ones follow each other in one place of the batch, with gaps
    behind those that have lengths.
    """
    if arguments.get("offsets_q") is not None:
        starts, lengths = [], []
        for name in ("q", "kv"):
            offsets = arguments[f"offsets_{name}"]
            starts.append(offsets[:-1])
            room = [end - start for start, end in pairwise(offsets)]
            lengths.append(arguments.get(f"lengths_{name}") or room)
        each = zip(*starts, *lengths, strict=True)
        return [Span(0, q, queries, k, keys) for q, k, queries, keys in each]
    batch, _, queries, _ = np.shape(operands["q"])
    keys, table = np.shape(operands["k"])[2], arguments.get("page_table")
    keys *= 1 if table is None else len(table[0])
    rows, columns = (
        [longest] * batch if arguments.get(name) is None else arguments[name]
        for name, longest in (("lengths_q", queries), ("lengths_kv", keys))
    )
    return [Span(place, 0, rows[place], 0, columns[place]) for place in range(batch)]


def attention_band(arguments: Arguments, queries: int, keys: int) -> tuple[float, float]:
    """Return the bounds of ``key - query`` for the pairs of a sequence that are not masked."""
    left, right = arguments.get("window") or (None, None)
    low = -np.inf if left in (None, -1) else -float(left)
    high = np.inf if right in (None, -1) else float(right)
    causal = arguments.get("causal", False)
    shift = keys - queries if causal == "bottom_right" else 0
    return low + shift, min(high, 0.0 if causal else np.inf) + shift


# --- sequences --------------------------------------------------------------------------------------------


class Labels(NamedTuple):
    """One sequence of a CTC loss."""

    labels: list[int]
    steps: int

    @property
    def impossible(self) -> bool:
        """Whether the labels need more steps: one each, and one between equal neighbours."""
        repeated = sum(a == b for a, b in zip(self.labels, self.labels[1:], strict=False))
        return self.steps < len(self.labels) + repeated


def ctc_targets(operands: Operands, arguments: Arguments) -> list[Labels]:
    """Return labels and steps of each sequence, which are operands or arguments."""

    def ints(name: str) -> np.ndarray:
        given = operands.get(name)
        return np.asarray(arguments[name] if given is None else given)

    labels, lengths, steps = ints("labels"), ints("label_lengths"), ints("input_lengths")
    if labels.ndim == 2:
        rows = [row[:count] for row, count in zip(labels, lengths, strict=True)]
    else:
        ends = np.cumsum(lengths, dtype=int)
        rows = [labels[end - count : end] for end, count in zip(ends, lengths, strict=True)]
    return [Labels([int(n) for n in row], int(end)) for row, end in zip(rows, steps, strict=True)]


GATES = {
    "rnn_relu": ("hidden",),
    "rnn_tanh": ("hidden",),
    "lstm": ("input", "forget", "cell", "output"),
    "gru": ("reset", "update", "new"),
}


class Network(NamedTuple):
    """A recurrent network as `ct.RNN` describes it; sizes follow from the weights and the states."""

    mode: str
    hidden: int
    output: int
    layers: int
    directions: int
    clip: tuple[float, float] | None
    lengths: list[int]
    layout: str
    padding_value: float

    def prefix(self, layer: int, direction: int) -> str:
        """Return the beginning of the names of the weights of a layer."""
        return f"l{layer}{'_reverse' * direction}."


def rnn_weights(operands: Operands, arguments: Arguments) -> dict[str, Any]:
    """Return the weights by the names of ``ct.RNN.pack_params``."""
    weights = operands.get("weights")
    return dict(arguments["weights"] if weights is None else weights)


def rnn_network(operands: Operands, arguments: Arguments) -> Network:
    """Return the parameters of a recurrent network."""
    weights, mode = rnn_weights(operands, arguments), named(arguments["mode"], "")
    hidden, output = weights[f"l0.R_{GATES[mode][0]}"].shape
    directions = 2 if named(arguments.get("direction"), "unidirectional") == "bidirectional" else 1
    layout = named(arguments.get("layout"), "sequence_major")
    shape, lengths = np.shape(operands["x"]), operands.get("lengths")
    lengths = arguments.get("lengths") if lengths is None else lengths
    if lengths is None:
        steps, batch = shape[:2] if layout == "sequence_major" else (shape[1], shape[0])
        lengths = [steps] * batch
    clip = arguments.get("clip")
    return Network(
        mode,
        int(hidden),
        int(output),
        int(arguments.get("num_layers", 1)),
        2 if arguments.get("bidirectional") else directions,
        None if clip is None else (float(np.float32(clip[0])), float(np.float32(clip[1]))),
        [int(n) for n in lengths],
        layout,
        float(arguments.get("padding_value", 0)),
    )


def places_of_steps(network: Network) -> list[list[tuple[int, ...]]]:
    """Return the leading indices in x, and in y, of each step of each sequence."""
    lengths = network.lengths
    if network.layout == "packed":  # the first step of each sequence, then the second, ...
        starts = np.cumsum([0, *(sum(n > t for n in lengths) for t in range(max(lengths, default=0)))])
        return [[(int(starts[t]) + n,) for t in range(end)] for n, end in enumerate(lengths)]
    if network.layout == "batch_major":
        return [[(n, t) for t in range(end)] for n, end in enumerate(lengths)]
    return [[(t, n) for t in range(end)] for n, end in enumerate(lengths)]


def first_given(operands: Operands, *names: str) -> Any:
    """Return the operand that has one of these names, or None."""
    return next((operands[name] for name in names if operands.get(name) is not None), None)
