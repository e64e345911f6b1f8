"""Drawn calls through `cudnn_ct.jax` inside ``jax.jit``, where JAX is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import cudnn_ct as ct
from tests.operations import Door, each, same

from .operands import Tensor

__all__ = ["DOORS", "JIT", "can_jit", "is_installed", "jitted"]

JIT = "jax.jit"  # in place of the function that prepares a plan


_GEOMETRY = same("padding", "stride", "dilation", "groups")
_NORM = ("x", "scale", "bias")
DOORS = {
    "activation": Door(("x",), same("mode", "coefficient")),
    "attention": Door(("q", "k", "v", "bias"), same("scale", "causal", "window")),
    "batch_norm_inference": Door((*_NORM, "mean", "var"), same("epsilon")),
    "conv": Door(("x", "w"), _GEOMETRY),
    "conv_bias_activation": Door(
        ("x", "w", "bias", "residual"), _GEOMETRY | same("activation", "coefficient")
    ),
    "conv_transpose": Door(("x", "w"), _GEOMETRY | same("output_padding")),
    "grid_sample": Door(("x", "grid"), {}),
    "instance_norm": Door(_NORM, same("epsilon"), "y"),
    "layer_norm": Door(_NORM, same("epsilon"), "y"),
    "lrn": Door(("x",), {"n": "n", "lrn_alpha": "alpha", "lrn_beta": "beta", "k": "k"}),
    "matmul": Door(("a", "b", "bias", "residual"), same("activation", "alpha")),
    "pool": Door(("x",), same("window", "stride", "padding", "mode")),
    "rms_norm": Door(_NORM, same("epsilon"), "y"),
    "softmax": Door(("x",), same("axis")),
    **each("jitted"),
}
# Arguments that the functions lack, and the values that they have there.
FIXED = {
    "algo": ("accurate",),
    "alpha1": (1,),
    "alpha2": (1,),
    "deterministic": (False,),
    "mode": ("cross_correlation", "spatial", "channel"),
    "causal": (False,),
    "return_stats": (False, True),
    "training": (True,),
}


def can_jit(operation: str, operands: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> bool:
    """Return whether the door has a function for a call, whether or not JAX is installed."""
    door = DOORS.get(operation)
    if door is None or not set(operands) <= set(door.operands):
        return False
    if operation == "softmax" and "axis" not in arguments:  # its mode is that of the package
        return False
    first = next(iter(operands.values())).dtype
    if operation in ("attention", "matmul") and any(one.dtype != first for one in operands.values()):
        return False
    return all(
        (name in door.arguments and _is_known(name, value)) or value in FIXED.get(name, ())
        for name, value in arguments.items()
    )


def _is_known(name: str, value: Any) -> bool:
    if name == "causal":
        return value in ("top_left", "bottom_right")
    if name == "window":
        return value != "global" and not (isinstance(value, Iterable) and None in value)
    return True


def is_installed() -> bool:
    """Return whether JAX can be imported."""
    return find_spec("jax") is not None


def jitted(operation: str, arrays: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function of an operation inside ``jax.jit``; return its first result in host memory."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    door = DOORS[operation]
    given = {name: ct.asarray(array).numpy() for name, array in arrays.items()}
    taken = {name: value for name, value in arguments.items() if value not in FIXED.get(name, ())}
    keywords = tuple((door.arguments[name], value) for name, value in taken.items())
    function = _compiled(operation, tuple(given), repr(keywords), _Keywords(keywords))
    result = "y" if arguments.get("return_stats") else door.result
    return {result: np.asarray(function(*given.values()))}


class _Keywords:
    """Keywords that a cache ignores: their text is a key of it."""

    def __init__(self, pairs: tuple[tuple[str, Any], ...]) -> None:
        self.pairs = dict(pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keywords)

    def __hash__(self) -> int:
        return 0


@cache
def _compiled(operation: str, names: tuple[str, ...], _: str, keywords: _Keywords) -> Callable[..., Any]:
    """Return a function of the given operands, which JAX compiles once for each problem."""
    import jax

    from cudnn_ct import jax as ctj

    def function(*arrays: Any) -> Any:
        given = dict(zip(names, arrays, strict=True))
        operands = [given.get(name) for name in DOORS[operation].operands]
        while operands[-1] is None:
            operands.pop()
        found = getattr(ctj, operation)(*operands, **keywords.pairs)
        return found[0] if isinstance(found, tuple) else found

    return jax.jit(function)
