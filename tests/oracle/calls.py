"""Drawn calls as calls of the public interface, and their results by the names that the answers have."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype

from .draw import Call

__all__ = ["CONVOLUTIONS", "made", "plan_of", "planned", "weights_of"]

DIRECTIONS = {
    "conv": "forward",
    "conv_backward_data": "backward_data",
    "conv_backward_filter": "backward_filter",
}
CONVOLUTIONS = (*DIRECTIONS, "conv_bias_activation")


def made(
    call: Call, arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Make a call; ``given`` are its arguments and factors, ``keywords`` those of ``out`` and ``stream``."""
    if call.operation in SEQUENCES:
        return SEQUENCES[call.operation](arrays, dict(given), keywords)
    named = arrays | given | _on_device(given)
    for name in ("lengths_on_device", *["mask"] * ("mask" in given)):
        named.pop(name, None)
    with_indices = call.operation == "reduce" and named.pop("indices", False)
    operation = "reduce_with_indices" if with_indices else call.operation
    first = [named.pop(name) for name in positional(call.operation)]
    if list(call.more) == ["amax"] and call.operation == "scaled_attention":  # the statistics are between
        y, amax = keywords["out"]
        keywords = keywords | {"out": (y, None, amax)}
    return _by_name(getattr(ct, operation)(*first, **named, **keywords))


@cache
def positional(operation: str) -> tuple[str, ...]:
    """Return the parameters of a public function that have to be given; the rest is passed by keyword."""
    parameters = signature(getattr(ct, operation)).parameters.values()
    return tuple(one.name for one in parameters if one.kind != one.KEYWORD_ONLY and one.default is one.empty)


def _on_device(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are arrays of integers on the device; lengths may also be lists."""
    names = ["page_table"] + (["offsets", "indices", "order"] if "offsets" in given else [])
    if given.get("lengths_on_device"):
        names += ["lengths", "lengths_q", "lengths_kv"]
    return {name: ct.asarray(np.asarray(given[name], np.int32)) for name in names if name in given}


def planned(
    call: Call, arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Prepare a plan, and run it twice: the second run takes a shorter path."""
    plan, inputs = plan_of(call, arrays, given, keywords)
    runs = 1 if "beta" in call.factors else 2
    return _by_name([plan(*inputs, **keywords) for _ in range(runs)][-1])


def plan_of(
    call: Call, arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]
) -> tuple[ct.ConvPlan, list[Any]]:
    """Prepare the plan of a convolution; return it and the operands to run it with."""
    named = arrays | given
    first = [named.pop(name) for name in positional(call.operation)]
    if call.operation == "conv_bias_activation":
        plan = ct.conv_bias_activation_plan(*first, **named, **keywords)
        return plan, [first[0], first[1], *([named["residual"]] if "residual" in named else []), first[2]]
    plan = ct.conv_plan(*first, direction=DIRECTIONS[call.operation], **named, **keywords)
    return plan, [array for array in first if not isinstance(array, tuple)]


def _by_name(result: Any) -> dict[str, Any]:
    if hasattr(result, "_asdict"):
        return {name: array for name, array in result._asdict().items() if array is not None}
    return {"out": result}


# --- operations that are not one function ------------------------------------------------------------------


def _dropout(arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Drop elements, and the gradient of another array by the same mask."""
    state = ct.DropoutState(given["p"], seed=given["seed"], **keywords)
    y, mask = ct.dropout(arrays["x"], state, **keywords)
    return {"y": y, "dx": ct.dropout_backward(arrays["dy"], mask, state, **keywords)}


def _ctc_loss(arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]) -> dict[str, Any]:
    targets = [given.pop(name) for name in ("labels", "label_lengths", "input_lengths")]
    return _by_name(ct.ctc_loss(arrays["logits"], *targets, **given, **keywords))


def _network(given: dict[str, Any], dtype: str) -> Any:
    names = ("mode", "input_size", "hidden_size", "num_layers")
    return ct.RNN(*(given[name] for name in names), direction=given["direction"], dtype=dtype)


def _rnn(arrays: dict[str, Any], given: dict[str, Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Run a recurrent network forward, then both halves of its gradient."""
    rnn = _network(given, given["dtype"])
    order = {name: given[name] for name in ("layout", "lengths", "padding_value")}
    states = (arrays["h0"], arrays.get("c0"))
    y, hy, cy, reserve = rnn.forward(arrays["x"], arrays["w"], *states, training=True, **order, **keywords)
    incoming = (arrays["dy"], arrays["dhy"], arrays.get("dcy"))
    dx, dh0, dc0 = rnn.backward_data(incoming[0], reserve, *incoming[1:], **keywords)
    dw = rnn.backward_weights(reserve, **keywords)
    results = {"y": y, "hy": hy, "cy": cy, "dx": dx, "dhx": dh0, "dcx": dc0}
    results |= {f"dweights/{name}": part for name, part in _parts(rnn, dw).items()}
    return {name: array for name, array in results.items() if array is not None}


def _parts(rnn: Any, w: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for layer in range(rnn.num_layers):
        for direction in range(1 + (rnn.direction == "bidirectional")):
            parts |= rnn.split_params(w, layer, direction)
    return parts


def weights_of(call: Call, values: np.ndarray) -> dict[str, np.ndarray]:
    """The weights of a network by their names, in float64."""
    dtype = call.operands["w"].dtype
    w = ct.asarray(np.asarray(values, as_dtype(dtype).numpy))
    parts = _parts(_network(call.arguments, dtype), w)
    return {name: np.asarray(part.numpy(), np.float64) for name, part in parts.items()}


SEQUENCES = {"RNN": _rnn, "ctc_loss": _ctc_loss, "dropout": _dropout}
