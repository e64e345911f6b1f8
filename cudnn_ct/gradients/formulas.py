"""Rows of operations with a gradient, and gradients as calls of other operations.

Each gradient takes a namespace of operators and a :class:`Backward`, and returns the gradients of the
operands that are wanted, and maybe of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

NONE: Mapping[str, Any] = MappingProxyType({})


class Param(NamedTuple):
    """A parameter that is not an array: its kind, and its default.

    A ``shape`` may be symbolic while a program is traced. ``padding`` has a number for each axis, or two, for
    both sides of each. An ``ints`` has a number for each axis or one for all, ``lengths`` one for a sequence.
    """

    kind: Literal["int", "float", "bool", "str", "ints", "padding", "shape", "lengths"]
    default: Any = None
    optional: bool = False


@dataclass(frozen=True)
class Backward:
    """Arguments of a gradient."""

    arrays: Mapping[str, Any]  # those saved, and the gradients of results (``dy``), None if not given
    shapes: Mapping[str, Any]  # of all operands
    params: Mapping[str, Any]
    wanted: frozenset[str]  # the operands whose gradients are needed

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Return the parameters with these names."""
        return {name: self.params[name] for name in names}


Gradient = Callable[[Any, Backward], dict[str, Any]]
Needs = Mapping[str, tuple[str, ...]]


class Row(NamedTuple):
    """An operation with a gradient, or one that a gradient calls."""

    operands: tuple[str, ...]
    results: tuple[str, ...]  # fields of the function's result, or the name of its only one
    params: Mapping[str, Param] = NONE
    optional: tuple[str, ...] = ()  # operands that may be None
    updated: tuple[str, ...] = ()  # operands that are written
    fixed: Mapping[str, Any] = NONE
    # The differentiable operands, each with the operands and results that its gradient reads; a function if
    # the parameters decide it.
    needs: Needs | Callable[[Mapping[str, Any]], Needs] = NONE
    gradient: Gradient | None = None  # may return more than the wanted ones
    batch: Mapping[str, int] = NONE  # axes of samples, which do not depend on each other
    differentiable: int = 1  # so many results, unless there is no ``gradient``
    function: str = ""  # public, called with ``fixed`` besides the parameters; by default that of the name


def needs_of(row: Row, params: Mapping[str, Any]) -> Needs:
    """Return the differentiable operands with the operands and results that their gradients read."""
    return row.needs(params) if callable(row.needs) else row.needs


def saved_names(row: Row, params: Mapping[str, Any], wanted: frozenset[str]) -> tuple[str, ...]:
    """Return the operands and results that the gradients of the wanted operands read, in a fixed order."""
    needs = needs_of(row, params)
    read = {name for operand in wanted for name in needs.get(operand, ())}
    return tuple(name for name in (*row.operands, *row.results) if name in read)


def arguments(row: Row, params: Mapping[str, Any], operands: Mapping[str, Any], axes: int) -> dict[str, Any]:
    """Return the keywords of the public function; ``padding`` is read by the number of spatial axes."""
    keywords: dict[str, Any] = {**operands, **row.fixed}
    for name, param in row.params.items():
        value = params[name]
        if param.kind == "padding":
            value = _padding(tuple(value), axes)
        elif param.kind == "ints" and value is not None:
            value = tuple(value) if len(value) > 1 else value[0]
        elif param.kind == "shape":
            value = tuple(value)
        if value is not None or param.default is not None:
            keywords[name] = value
    return keywords


def _padding(numbers: tuple[int, ...], axes: int) -> Any:
    """Return a padding for each axis: a number, or a pair of the numbers before and after."""
    if len(numbers) == 2 * axes and len(numbers) > 1:
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return numbers[0] if len(numbers) == 1 else numbers


def by_call(function: str, read: str, operands: str, *, with_params: bool = True) -> Gradient:
    """Return the gradient that is one call: of the arrays ``read``, for the gradients of the ``operands``."""

    def gradient(ops: Any, at: Backward) -> dict[str, Any]:
        params = at.params if with_params else {}
        found = getattr(ops, function)(*(at[name] for name in read.split()), **params)
        names = operands.split()
        return dict(zip(names, found if len(names) > 1 else (found,), strict=True))

    return gradient


# --- convolutions ------------------------------------------------------------------------------------------

GEOMETRY = {
    "padding": Param("padding", (0,)),
    "stride": Param("ints", (1,)),
    "dilation": Param("ints", (1,)),
    "groups": Param("int", 1),
    "mode": Param("str", "cross_correlation"),
}


def by_convolutions(**functions: tuple[str, str]) -> Gradient:
    """Return the gradient of a linear function: for each operand a convolution and the arrays it takes."""

    def gradient(ops: Any, at: Backward) -> dict[str, Any]:
        geometry, found = at.some(*GEOMETRY), {}
        for operand, (function, read) in functions.items():
            if operand in at.wanted:
                arrays = (at[name] for name in read.split())
                shape = {f"{letter}_shape": at.shapes[operand] for letter in _SHAPED.get(function, "")}
                found[operand] = getattr(ops, function)(*arrays, **shape, **geometry)
        return found

    return gradient


_SHAPED = {"conv_backward_data": "x", "conv_backward_filter": "w"}  # they take the shape of the result

conv = by_convolutions(x=("conv_backward_data", "dy w"), w=("conv_backward_filter", "dy x"))
conv_backward_data = by_convolutions(dy=("conv", "ddx w"), w=("conv_backward_filter", "dy ddx"))
conv_backward_filter = by_convolutions(dy=("conv", "x ddw"), x=("conv_backward_data", "dy ddw"))
conv_transpose = by_convolutions(x=("conv", "dy w"), w=("conv_backward_filter", "x dy"))


def conv_backward_bias(ops: Any, at: Backward) -> dict[str, Any]:
    shape = at.shapes["dy"]
    per_channel = at["ddb"].reshape((1, -1) + (1,) * (len(shape) - 2))
    return {"dy": ops.broadcast_to(per_channel, shape)}


# --- activations -------------------------------------------------------------------------------------------

ACTIVATION = {"mode": Param("str", "relu"), "coefficient": Param("float", 0.0)}
OF_RESULT = ("relu", "sigmoid", "tanh")  # activations whose slope follows from their result
PIECEWISE_LINEAR = ("identity", "relu", "clipped_relu")  # activations without a second derivative
GELU = {"gelu": "none", "gelu_tanh": "tanh"}


def activation_needs(params: Mapping[str, Any]) -> Needs:
    return {"x": _read_before(params["mode"], ("x", "y"))}


def activation(ops: Any, at: Backward) -> dict[str, Any]:
    if at.params["mode"].lower() == "identity":
        return {"x": at["dy"]}
    x = at["y"] if at.params["mode"].lower() in OF_RESULT else at["x"]
    return {"x": ops.activation_backward(at["dy"], x, at["y"], **at.params)}


def activation_backward_needs(params: Mapping[str, Any]) -> Needs:
    if params["mode"].lower() not in PIECEWISE_LINEAR:
        return {"dy": ("x", "y"), "x": (), "y": ()}
    return {"dy": ("x", "y")}


def activation_backward(ops: Any, at: Backward) -> dict[str, Any]:
    if at.params["mode"].lower() not in PIECEWISE_LINEAR:
        modes = ", ".join(PIECEWISE_LINEAR)
        raise NotImplementedError(
            f"the second derivative of {at.params['mode']} is not supported; expected one of {modes}"
        )
    return {"dy": ops.activation_backward(at["ddx"], at["x"], at["y"], **at.params)}


def before_activation(ops: Any, at: Backward, coefficient: float, again: Callable[[], Any]) -> Any:
    """Return the gradient before a fused activation; ``again`` computes its argument for a second time."""
    kind, dy = (at.params["activation"] or "identity").lower(), at["dy"]
    if kind == "identity":
        return dy
    if kind in OF_RESULT:
        return ops.activation_backward(dy, at["y"], at["y"], mode=kind, coefficient=coefficient)
    before = again()
    if kind in GELU:
        return ops.gelu_backward(dy, before, approximate=GELU[kind])
    return ops.activation_backward(dy, before, at["y"], mode=kind, coefficient=coefficient)


def _read_before(kind: str, every: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the gradient before an activation reads: nothing, the result, or ``every`` operand too."""
    if kind.lower() == "identity":
        return ()
    return ("y",) if kind.lower() in OF_RESULT else every


# --- fused convolutions ------------------------------------------------------------------------------------

FUSED = {"activation": Param("str", "relu"), "coefficient": Param("float", 0.0)}


def fused_conv_needs(params: Mapping[str, Any]) -> Needs:
    before = _read_before(params["activation"], ("x", "w", "bias", "residual", "y"))
    return {"x": ("w", *before), "w": ("x", *before), "bias": before, "residual": before}


def fused_conv(ops: Any, at: Backward) -> dict[str, Any]:
    def again() -> Any:
        identity = {"activation": "identity", "coefficient": 0.0}
        operands = (at["x"], at["w"], at["bias"], at["residual"])
        return ops.conv_bias_activation(*operands, **{**at.params, **identity})

    dy = before_activation(ops, at, at.params["coefficient"], again)
    found = {**conv(ops, replace(at, arrays={**at.arrays, "dy": dy})), "residual": dy}
    if "bias" in at.wanted:
        found["bias"] = ops.conv_backward_bias(dy)
    return found


# --- pooling, softmax, local response normalisation --------------------------------------------------------

POOLING = {
    "window": Param("ints", (2,)),
    "stride": Param("ints", None, optional=True),
    "padding": Param("padding", (0,)),
    "mode": Param("str", "max"),
    "propagate_nan": Param("bool", True),
}


def pool_needs(params: Mapping[str, Any]) -> Needs:
    return {"x": ("x", "y") if params["mode"].lower().startswith("max") else ("x",)}


def pool(ops: Any, at: Backward) -> dict[str, Any]:
    # The gradient of an average depends on dy alone: dy stands for y, which the call takes as well.
    y = at["y" if at.params["mode"].lower().startswith("max") else "dy"]
    return {"x": ops.pool_backward(at["dy"], at["x"], y, **at.params)}


def pool_backward_needs(params: Mapping[str, Any]) -> Needs:
    return {"dy": (), "x": (), "y": ()} if params["mode"].lower().startswith("max") else {"dy": ()}


def pool_backward(ops: Any, at: Backward) -> dict[str, Any]:
    if at.params["mode"].lower().startswith("max"):
        raise NotImplementedError("the second gradient of a maximum pooling is not supported")
    return {"dy": ops.pool(at["ddx"], **at.params)}  # averages and sums are linear


SOFTMAX = {"axis": Param("ints", (-1,)), "algo": Param("str", "accurate")}
softmax = by_call("softmax_backward", "dy y", "x")


LRN = {
    "n": Param("int", 5),
    "lrn_alpha": Param("float", 1e-4),
    "lrn_beta": Param("float", 0.75),
    "k": Param("float", 2.0),
}
lrn = by_call("lrn_backward", "dy x y", "x")


# --- normalisations ----------------------------------------------------------------------------------------

EPSILON = {"epsilon": Param("float", 1e-5)}
BATCH_NORM_TRAINING = {
    **EPSILON,
    "momentum": Param("float", 0.1),
    "activation": Param("str", None, optional=True),
}
NORM_GRADIENTS = ("dx", "dscale", "dbias")
STATISTICS = ("mean", "invstd")


def parameters(dx: Any, dscale: Any, dbias: Any = None) -> dict[str, Any]:
    return {"x": dx, "scale": dscale, "bias": dbias}


def batch_norm_needs(params: Mapping[str, Any]) -> Needs:
    active = params["activation"] is not None
    read = ("x", "scale", *STATISTICS, *(("y",) if active else ()))
    return {"x": read, "scale": read, "bias": read, "residual": read if active else ()}


def batch_norm_training(ops: Any, at: Backward) -> dict[str, Any]:
    params = at.some(*EPSILON)
    if at.params["activation"] is None and at.wanted == {"residual"}:
        return {"residual": at["dy"]}
    operands = (at["dy"], at["x"], at["scale"], at["mean"], at["invstd"])
    if at.params["activation"] is None:
        return {**parameters(*ops.batch_norm_backward(*operands, **params)), "residual": at["dy"]}
    active = {"activation": at.params["activation"]}
    *gradients, dz = ops.batch_norm_activation_backward(*operands, at["y"], **params, **active)
    return {**parameters(*gradients), "residual": dz}


GROUPS = {"groups": Param("int", 1), **EPSILON}
_OF_NORM = "x scale bias"
_NORM_READS = "dy x scale mean invstd"
batch_norm_inference = by_call("batch_norm_inference_backward", "dy x scale mean var", _OF_NORM)
instance_norm = by_call("instance_norm_backward", _NORM_READS, _OF_NORM)
group_norm = by_call("group_norm_backward", _NORM_READS, _OF_NORM)
layer_norm = by_call("layer_norm_backward", _NORM_READS, _OF_NORM, with_params=False)
ada_layer_norm = by_call("ada_layer_norm_backward", _NORM_READS, _OF_NORM, with_params=False)


def rms_norm(ops: Any, at: Backward) -> dict[str, Any]:
    backward = ops.rms_norm_bias_backward if "bias" in at.wanted else ops.rms_norm_backward
    return parameters(*backward(at["dy"], at["x"], at["scale"], at["invrms"]))


# --- products ----------------------------------------------------------------------------------------------

MATMUL = {"activation": Param("str", None, optional=True), "alpha": Param("float", 1.0)}


def matmul_needs(params: Mapping[str, Any]) -> Needs:
    before = _read_before(params["activation"] or "identity", ("a", "b", "bias", "residual", "y"))
    read = ("a", "b", *before)
    return {"a": read, "b": read, "bias": read, "residual": before}


def matmul(ops: Any, at: Backward) -> dict[str, Any]:
    def again() -> Any:
        operands = (at["a"], at["b"], at["bias"], at["residual"])
        return ops.matmul(*operands, activation=None, alpha=at.params["alpha"])

    dy = before_activation(ops, at, 0.0, again)
    found: dict[str, Any] = {"residual": dy}
    if not at.wanted & {"a", "b", "bias"}:
        return found
    operands, alpha = (dy, at["a"], at["b"]), at.params["alpha"]
    backward = ops.matmul_bias_backward if "bias" in at.wanted else ops.matmul_backward
    return found | dict(zip(("a", "b", "bias"), backward(*operands, alpha=alpha), strict=False))


# --- attention, sequences, sampling ------------------------------------------------------------------------

ATTENTION = {
    "scale": Param("float", None, optional=True),
    "causal": Param("str", None, optional=True),
    "window": Param("ints", None, optional=True),
}
QKV = ("q", "k", "v")
ATTENDED = (*QKV, "bias", "y", "stats")


def attention(ops: Any, at: Backward) -> dict[str, Any]:
    operands = (at["dy"], at["q"], at["k"], at["v"], at["y"], at["stats"], at["bias"])
    backward = ops.attention_bias_backward if "bias" in at.wanted else ops.attention_backward
    return dict(zip((*QKV, "bias"), backward(*operands, **at.params), strict=False))


def ctc_loss(ops: Any, at: Backward) -> dict[str, Any]:  # noqa: ARG001 - the forward pass has computed it
    return {"logits": at["gradient"] * at["dloss"].reshape((1, -1, 1))}


affine_grid = by_call("affine_grid_backward", "dgrid", "theta", with_params=False)
grid_sample = by_call("grid_sample_backward", "dy x grid", "x grid")


def affine_grid_backward(ops: Any, at: Backward) -> dict[str, Any]:
    return {"dgrid": ops.affine_grid(at["ddtheta"], shape=at.shapes["dgrid"][:3])}
