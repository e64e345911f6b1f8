"""Calls of `cudnn_ct.jax`: operands by shapes, for the CPU and the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CASES", "SHARDED", "Case", "operands_of"]

X, W = (2, 4, 6, 5), (6, 2, 3, 2)
GEOMETRY = {"padding": ((1, 0), (0, 1)), "stride": (2, 1), "groups": 2}


class Case(NamedTuple):
    """A call: the function's name, the shapes of its operands, keywords, and the reference of the package.

    ``first`` takes the result that is compared.
    """

    name: str
    shapes: tuple[tuple[int, ...] | None, ...]
    keywords: dict[str, Any]
    reference: Callable[..., Any]
    dtype: str = "float64"

    def __str__(self) -> str:
        words = [str(value) for value in self.keywords.values() if isinstance(value, str | bool)]
        return "-".join([self.name, self.dtype, *words])


def _reference(name: str, *operands: str, **renamed: Any) -> Callable[..., Any]:
    """Return a function of arrays that calls the reference, and returns its first result."""

    def call(*arrays: Any, **keywords: Any) -> Any:
        from cudnn_ct import reference

        given = dict(zip(operands, arrays, strict=True))
        changed = {renamed.get(key, key): value for key, value in keywords.items()}
        found = getattr(reference, name)(**given, **changed)
        return found[0] if isinstance(found, tuple) else found

    return call


CONV = _reference("conv", "x", "w")
MATMUL = _reference("matmul", "a", "b", "bias")
ROWS = (3, 16)
NORM = ((3, 4, 5), (4,), (4,))
CASES = [
    Case("conv", (X, W), GEOMETRY, CONV),
    Case("conv", ((2, 4, 7), (6, 4, 3)), {"padding": "half", "dilation": 2}, CONV),
    Case(
        "conv_bias_activation", (X, W, (6,), (2, 6, 3, 5)), GEOMETRY,
        _reference("conv_bias_activation", "x", "w", "b", "z"),
    ),
    Case(
        "conv_bias_activation", (X, W, (6,), None), {**GEOMETRY, "activation": "swish"},
        _reference("conv_bias_activation", "x", "w", "b", "z"),
    ),
    Case(
        "conv_transpose", ((2, 6, 3, 5), W), {"padding": (1, 0), "stride": (2, 1), "groups": 2},
        _reference("conv_transpose", "x", "w"),
    ),
    Case("pool", (X,), {"window": (2, 3), "stride": (2, 1), "padding": (1, 1)}, _reference("pool", "x")),
    Case("pool", (X,), {"window": 2, "mode": "average_inc_pad"}, _reference("pool", "x")),
    Case("softmax", ((3, 4),), {"axis": -1}, _reference("softmax", "x")),
    Case("activation", ((3, 4),), {"mode": "tanh"}, _reference("activation", "x")),
    Case("activation", ((3, 4),), {"mode": "elu", "coefficient": 0.5}, _reference("activation", "x")),
    Case("lrn", ((2, 6, 3, 3),), {}, _reference("lrn", "x")),
    Case("batch_norm_training", NORM, {}, _reference("batch_norm_training", "x", "scale", "bias")),
    Case(
        "batch_norm_training", (*NORM, NORM[0]), {"activation": "relu"},
        _reference("batch_norm_training", "x", "scale", "bias", "z"),
    ),
    Case(
        "batch_norm_inference", (*NORM, (4,), (4,)), {},
        _reference("batch_norm_inference", "x", "scale", "bias", "mean", "var"),
    ),
    Case("instance_norm", NORM, {}, _reference("instance_norm", "x", "scale", "bias"), "float32"),
    Case("layer_norm", (ROWS, (16,), (16,)), {}, _reference("layer_norm", "x", "scale", "bias"), "float32"),
    Case("rms_norm", (ROWS, (16,)), {}, _reference("rms_norm", "x", "scale"), "float32"),
    Case("matmul", ((2, 3, 4), (4, 8), (8,)), {"alpha": 0.5}, MATMUL, "float32"),
    Case("matmul", ((3, 4), (4, 8), (8,)), {"activation": "relu"}, MATMUL, "float32"),
    Case("grid_sample", ((2, 3, 5, 4), (2, 3, 3, 2)), {}, _reference("grid_sample", "x", "grid")),
]  # fmt: skip


def operands_of(case: Case, seed: int = 0) -> list[Any]:
    """Return operands as NumPy arrays; variances are positive."""
    rng = np.random.default_rng(seed)
    made = [
        None if shape is None else rng.uniform(0.25, 1.75, shape) * rng.choice([-1, 1], shape)
        for shape in case.shapes
    ]
    if case.name == "batch_norm_inference":
        made[4] = np.abs(made[4])
    if case.name == "grid_sample":
        made[1] = rng.uniform(-0.8, 0.8, case.shapes[1])
    return [None if array is None else array.astype(case.dtype) for array in made]


# A program that compares a function split over all devices with the same on one.
SHARDED = """
import json, numpy as np, jax
from jax.sharding import Mesh, PartitionSpec as P
from cudnn_ct import jax as ctj
rng = np.random.default_rng(0)
x = rng.standard_normal((8, 3, 6, 6)).astype("float32")
w = rng.standard_normal((5, 3, 3, 3)).astype("float32")
mesh = Mesh(np.array(jax.devices()), ("d",))
def one(x, w):
    return ctj.pool(ctj.conv(x, w, padding="half"), 2)
split = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
def gradients(function):
    return jax.grad(lambda *operands: (function(*operands) ** 2).sum(), (0, 1))(x, w)
pairs = zip((split(x, w), *gradients(split)), (one(x, w), *gradients(one)))
far = [float(abs(a - np.asarray(b)).max() / abs(np.asarray(b)).max()) for a, b in pairs]
print(json.dumps({"devices": len(jax.devices()), "far": far}))
"""
