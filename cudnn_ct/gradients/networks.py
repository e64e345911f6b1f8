"""Recurrent networks as rows, with several differentiable results, and their bodies.

They are methods of :class:`cudnn_ct.RNN`, whose weights are one array. Its reserve of a training pass belongs
to the package, so that a gradient runs the network again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from ..shapes.checks import expect_rank, one_dtype
from ..shapes.rnn import RNNSpec, rnn_spec, rnn_weight_size
from ..shapes.sequences import check_rnn_operands
from ..shapes.specs import TensorSpec
from .row import Backward, Param, Row

_NETWORK = {
    "hidden_size": Param("int"),
    "mode": Param("str", "lstm"),
    "num_layers": Param("int", 1),
    "direction": Param("str", "unidirectional"),
    "bias": Param("str", "double_bias"),
    "projection_size": Param("int", 0),
}
_CALL = {"layout": Param("str", "sequence_major"), "lengths": Param("lengths", None, optional=True)}
PARAMS = {**_NETWORK, **_CALL}
Params = Mapping[str, Any]


def _rows(name: str, states: tuple[str, ...], last: tuple[str, ...]) -> dict[str, Row]:
    """Return the forward and the backward row of networks by the names of their states."""
    operands, results = ("x", "w", *states), ("y", *last)
    given, found = (tuple(f"d{one}" for one in names) for names in (results, operands))

    def gradient(ops: Any, at: Backward) -> dict[str, Any]:
        arrays = (at[one] for one in (*operands, *given))
        return dict(zip(operands, getattr(ops, f"{name}_backward")(*arrays, **at.params), strict=True))

    forward = Row(
        operands, results, PARAMS, states, needs=dict.fromkeys(operands, operands), gradient=gradient,
        differentiable=len(results), function="rnn",
    )  # fmt: skip
    backward = Row((*operands, *given), found, PARAMS, (*states, *given), function="rnn_backward")
    return {name: forward, f"{name}_backward": backward}


NETWORKS = {**_rows("lstm", ("h0", "c0"), ("hy", "cy")), **_rows("rnn", ("h0",), ("hy",))}


def spec_of_network(x: TensorSpec, params: Params) -> RNNSpec:
    """Check the parameters of a network for an input, and return it as a value."""
    return rnn_spec(input_size=x.shape[-1], dtype=x.dtype, **{one: params[one] for one in _NETWORK})


def network_results(name: str, params: Params, specs: Mapping[str, TensorSpec]) -> tuple[TensorSpec, ...]:
    """Check the operands of a network, and return its results."""
    x, dtypes = specs["x"], {one: spec.dtype for one, spec in specs.items()}
    expect_rank(x, "x", 2 if params["layout"] == "packed" else 3)
    spec = spec_of_network(x, params)
    one_dtype("a recurrent network", **dtypes)
    h, c = (specs[one].shape if one in specs else None for one in ("h0", "c0"))
    shapes, _ = check_rnn_operands(spec, x.shape, h, c, params["lengths"], params["layout"])
    known = {**shapes._asdict(), "w": (rnn_weight_size(spec),)}
    if specs["w"].shape != known["w"]:
        raise ValueError(f"w has the wrong shape: got {specs['w'].shape}, expected {known['w']} for {spec}")
    letters = (one.strip("d0")[0] for one in NETWORKS[name].results)  # dx, hy, dc0 are like x, h, c
    return tuple(TensorSpec.packed(known[letter], x.dtype) for letter in letters)


def body(rnn: Any, name: str, x: TensorSpec, params: Params, precision: str | None = None) -> Any:
    """Return the function of a row, by the class of networks: it takes the operands by name, and ``out``."""
    network = _network(rnn, spec_of_network(x, params), precision)
    run = partial(_backward, network) if name.endswith("_backward") else network.forward
    return partial(run, **{one: params[one] for one in _CALL})


@lru_cache(64)
def _network(rnn: Any, spec: RNNSpec, precision: str | None) -> Any:
    keywords = {one: getattr(spec, one) for one in (*_NETWORK, "input_size", "dtype")}
    return rnn(**keywords, precision=precision)


def _backward(rnn: Any, *, dy: Any, dhy: Any, dcy: Any = None, out: Any, **given: Any) -> None:
    reserve, stream = rnn.forward(**given, training=True).reserve, given.get("stream")
    rnn.backward_data(dy, reserve, dhy, dcy, out=(out[0], *out[2:]), stream=stream)
    rnn.backward_weights(reserve, out=out[1], stream=stream)
