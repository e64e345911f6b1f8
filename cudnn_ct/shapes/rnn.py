"""Recurrent networks as values: the description of one, validated, and its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from .._algorithm_names import RNN_ALGOS as RNN_ALGOS
from ..dtypes import as_dtype
from ..typing import RNNBias, RNNDirection, RNNMode
from .arithmetic import resolve_precision
from .checks import as_choice, as_float, as_int, one_dtype
from .specs import INT_MAX, Shape

# The gates of a cell in the order of cuDNN's linLayerID, which counts them for the input, then for the state.
RNN_GATES: dict[RNNMode, tuple[str, ...]] = {
    "rnn_relu": ("hidden",),
    "rnn_tanh": ("hidden",),
    "lstm": ("input", "forget", "cell", "output"),
    "gru": ("reset", "update", "new"),
}
RNN_MODES = tuple(RNN_GATES)
RNN_DIRECTIONS: tuple[RNNDirection, ...] = ("unidirectional", "bidirectional")
RNN_INPUT_MODES = ("linear", "skip")

# Which of the two products of a gate have a bias: that of the input, that of the state.
RNN_BIASES: dict[RNNBias, tuple[bool, bool]] = {
    "no_bias": (False, False),
    "single_inp_bias": (True, False),
    "double_bias": (True, True),
    "single_rec_bias": (False, True),
}


class RNNSpec(NamedTuple):
    """A recurrent network as a value, not constructed by users: ``spec`` of an :class:`RNN`.

    ``projection_size`` is 0 where there is no projection. ``compute`` is the dtype that sums are kept in and
    ``math`` the name of cuDNN's ``mathType``. ``clip`` is the range of an LSTM's cells, or None.
    """

    mode: RNNMode
    input_size: int
    hidden_size: int
    num_layers: int
    direction: RNNDirection
    input_mode: Literal["linear", "skip"]
    bias: RNNBias
    projection_size: int
    dropout: float
    dtype: str
    compute: str
    math: str
    algo: str
    clip: tuple[float, float] | None

    @property
    def directions(self) -> int:
        """1, or 2 for a bidirectional network."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def pseudo_layers(self) -> int:
        """Layers times directions: layer ``i`` in direction ``d`` is pseudo layer ``directions * i + d``."""
        return self.num_layers * self.directions

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the gates of a cell."""
        return RNN_GATES[self.mode]

    @property
    def has_cells(self) -> bool:
        """Whether there is a state c in addition to h."""
        return self.mode == "lstm"

    @property
    def output_size(self) -> int:
        """Length of h, which is the output of one direction: projected, where there is a projection."""
        return self.projection_size or self.hidden_size

    def layer_input_size(self, layer: int) -> int:
        """Length of what a layer takes: the input of the network, or all directions of the layer below."""
        return self.output_size * self.directions if layer else self.input_size

    def __str__(self) -> str:
        projected = f" projected to {self.projection_size}" if self.projection_size else ""
        extras = f", dropout {self.dropout:g}" * bool(self.dropout)
        extras += f", cells clipped to {self.clip}" * bool(self.clip)
        return (
            f"{self.mode} {self.input_size} -> {self.hidden_size}{projected}, "
            f"{self.num_layers} layer{'s' * (self.num_layers > 1)}, "
            f"{self.direction}, {self.input_mode} input, {self.bias}{extras}, "
            f"{self.dtype} (sums in {self.compute}, {self.math} math)"
        )


def rnn_spec(
    mode: Any,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    *,
    direction: Any = "unidirectional",
    input_mode: Any = "linear",
    bias: Any = "double_bias",
    projection_size: int | None = 0,
    dropout: float = 0,
    dtype: Any = "float32",
    precision: str | None = None,
    algo: Any = "standard",
    clip: tuple[float, float] | None = None,
    allow_tf32: bool = True,
) -> RNNSpec:
    """Validate the description of a recurrent network, whose parameters are those of :class:`cudnn_ct.RNN`.

    ``algo`` is one of :data:`RNN_ALGOS`. ``allow_tf32`` decides about TF32 if ``precision`` is None.

    >>> print(rnn_spec("lstm", 32, 16, 3, direction="bidirectional", projection_size=8))
    lstm 32 -> 16 projected to 8, 3 layers, bidirectional, linear input, double_bias,
    float32 (sums in float32, default math)
    """
    mode = as_choice(mode, RNN_MODES, "mode")
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
    inputs, hidden, layers = (_count(value, name, 1) for name, value in sizes.items())
    native = tuple(f"{name}_input" for name in RNN_INPUT_MODES)  # cuDNN's names
    input_mode = as_choice(input_mode, (*RNN_INPUT_MODES, *native), "input_mode").removesuffix("_input")
    if input_mode == "skip" and inputs != hidden:
        raise ValueError(
            f"input_mode='skip' adds the input to the gates as it is, so the sizes must be equal: "
            f"input_size is {inputs}, hidden_size {hidden}"
        )
    algo = as_choice(algo, RNN_ALGOS, "algo")
    projection = 0 if projection_size is None else _count(projection_size, "projection_size", 0)
    if projection:
        _check_projection(mode, projection, hidden)
    probability = as_float(dropout, "dropout")
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {dropout}")
    name = one_dtype("a recurrent network", x=as_dtype(dtype).name)
    compute, tensor_cores = resolve_precision(precision, name, allow_tf32)
    if compute == "bfloat16":
        raise ValueError(
            f"precision={precision!r}: recurrent networks in bfloat16 keep sums in float32, "
            "which is precision='as_input_f32'"
        )
    return RNNSpec(
        *(mode, inputs, hidden, layers, as_choice(direction, RNN_DIRECTIONS, "direction"), input_mode),
        *(as_choice(bias, tuple(RNN_BIASES), "bias"), projection, probability, name, compute),
        *(_math(name, tensor_cores), algo, None if clip is None else _clip_range(mode, clip)),
    )


def _check_projection(mode: str, projection: int, hidden: int) -> None:
    if mode != "lstm":
        raise ValueError(f"projection_size={projection} is for mode='lstm'; mode={mode!r} has no projection")
    if projection >= hidden:
        raise ValueError(
            f"projection_size must be 0, for none, or less than hidden_size {hidden}, got {projection}"
        )


def _clip_range(mode: str, clip: Any) -> tuple[float, float]:
    if mode != "lstm":
        raise ValueError(f"clip={clip!r} is for the cells of mode='lstm'; mode={mode!r} has none")
    try:
        low, high = (as_float(bound, "clip") for bound in clip)
    except (TypeError, ValueError):
        raise TypeError(f"clip must be two numbers (low, high) or None, not {clip!r}") from None
    if not low <= high:
        raise ValueError(f"clip={clip!r}: low must not be more than high, nor either be NaN")
    return c_float(low).value, c_float(high).value  # as cuDNN keeps them, whatever the dtype


def _count(value: Any, name: str, least: int) -> int:
    n = as_int(value, name)
    if not least <= n <= INT_MAX:
        raise ValueError(f"{name} must be between {least} and {INT_MAX}, got {n}")
    return n


def _math(dtype: str, tensor_cores: bool) -> str:
    """Return the name of cuDNN's mathType; for float32 "default" is TF32."""
    if dtype in ("float16", "bfloat16"):
        return "tensor_op" if tensor_cores else "fma"
    return "fma" if dtype == "float32" and not tensor_cores else "default"


# --- the parameters of a recurrent network: names, shapes and offsets in the array of weights --------------

PROJECTION_ID = 8  # cuDNN's linLayerID of an LSTM's projection, after the 2 x 4 of its gates


class RNNParameter(NamedTuple):
    """One matrix, of shape (out, in) and in row-major order as cuDNN stores it, or one bias, of shape (out,).

    ``name`` has layer, direction and part: ``"l0.W_input"`` (of the input), ``"l0.R_input"`` (of the state),
    ``"l0.bW_input"`` and ``"l0.bR_input"`` (their biases), ``"l0_reverse.P"`` (a projection).
    """

    name: str
    pseudo_layer: int
    lin_layer_id: int
    kind: str
    shape: Shape
    offset: int = 0  # its place in the array of weights, in elements

    @property
    def size(self) -> int:
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


# --- weights -----------------------------------------------------------------------------------------------
# Tensors ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh`` and ``weight_hr`` of torch have the
# parameters ``W``, ``R``, ``bW``, ``bR`` and ``P`` of a layer, one gate below the other, in the same order.


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
    try:
        return list(weights)
    except TypeError:
        name = type(weights).__name__
        raise TypeError(f"weights are a mapping by names or a sequence, not {name}") from None


def from_torch(state: Mapping[str, Any], spec: RNNSpec, *, prefix: str = "") -> tuple[Any, ...]:
    """Return views of the arrays of a torch state in the order of :func:`rnn_parameters`."""
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
