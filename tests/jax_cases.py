"""Calls of `cudnn_ct.jax`: operands by shapes, for the CPU and the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CASES",
    "SHARDED",
    "SPLIT",
    "Case",
    "call",
    "check_gradients",
    "differentiable",
    "function_of",
    "mapped",
    "operands_of",
]

SEVERAL = ("batch_norm_training", "rnn")  # functions with more than one result
X, W = (2, 4, 6, 5), (6, 2, 3, 2)
GEOMETRY = {"padding": ((1, 0), (0, 1)), "stride": (2, 1), "groups": 2}


class Case(NamedTuple):
    """A call: the name of a function or row, the shapes of its operands, keywords, and the reference.

    The first result is compared.
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

        given = dict(zip(operands, arrays, strict=False))  # the last ones are optional
        changed = {renamed.get(key, key): value for key, value in keywords.items()}
        found = getattr(reference, name)(**given, **changed)
        return found[0] if isinstance(found, tuple) else found

    return call


def _network(x: Any, w: Any, *, mode: str, hidden_size: int) -> Any:
    from cudnn_ct.reference.rnn import rnn
    from cudnn_ct.shapes.rnn import rnn_parameters, rnn_spec

    spec = rnn_spec(mode, x.shape[2], hidden_size, dtype=str(x.dtype))
    return rnn(x, [row.view(w) for row in rnn_parameters(spec)], spec)[0]


CONV = _reference("conv", "x", "w")
MATMUL = _reference("matmul", "a", "b", "bias")
ATTENTION = _reference("attention", "q", "k", "v", "bias")
HEADS = (1, 2, 64, 64)
ROWS = (3, 16)
NORM = ((3, 4, 5), (4,), (4,))
CASES = [
    Case("conv", (X, W), GEOMETRY, CONV),
    Case("conv", ((2, 4, 7), (6, 4, 3)), {"padding": "half", "dilation": 2}, CONV),
    Case(
        "conv_bias_activation", (X, W, (6,), (2, 6, 3, 5)), GEOMETRY,
        _reference("conv_bias_activation", "x", "w", "bias", "residual"),
    ),
    Case(
        "conv_bias_activation", (X, W, (6,), None), {**GEOMETRY, "activation": "swish"},
        _reference("conv_bias_activation", "x", "w", "bias", "residual"),
    ),
    Case(
        "conv_bias_activation", (X, W, None, (2, 6, 3, 5)), {**GEOMETRY, "activation": "tanh"},
        _reference("conv_bias_activation", "x", "w", "bias", "residual"),
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
        _reference("batch_norm_training", "x", "scale", "bias", "residual"),
    ),
    Case(
        "batch_norm_inference", (*NORM, (4,), (4,)), {},
        _reference("batch_norm_inference", "x", "scale", "bias", "mean", "var"),
    ),
    Case("instance_norm", NORM, {}, _reference("instance_norm", "x", "scale", "bias"), "float32"),
    Case("group_norm", NORM, {"groups": 2}, _reference("group_norm", "x", "scale", "bias"), "float32"),
    Case("layer_norm", (ROWS, (16,), (16,)), {}, _reference("layer_norm", "x", "scale", "bias"), "float32"),
    Case("rms_norm", (ROWS, (16,)), {}, _reference("rms_norm", "x", "scale"), "float32"),
    Case("matmul", ((2, 3, 4), (4, 8), (8,)), {"alpha": 0.5}, MATMUL, "float32"),
    Case("matmul", ((3, 4), (4, 8), (8,)), {"activation": "relu"}, MATMUL, "float32"),
    Case("grid_sample", ((2, 3, 5, 4), (2, 3, 3, 2)), {}, _reference("grid_sample", "x", "grid")),
    Case("attention", (HEADS, HEADS, HEADS), {"causal": "top_left"}, ATTENTION, "float16"),
    Case("attention", (HEADS, HEADS, HEADS, (1, 2, 64, 64)), {}, ATTENTION, "float16"),
    Case(
        "ctc_loss", ((6, 2, 4), (2, 2), (2,), (2,)), {},
        _reference("ctc_loss", "logits", "labels", "label_lengths", "input_lengths"), "float32",
    ),
    Case("rnn", ((5, 2, 3), (144,)), {"mode": "lstm", "hidden_size": 4}, _network),
    Case("rnn", ((5, 2, 3), (72,)), {"mode": "gru", "hidden_size": 3}, _network),
    # Rows of the table without a function of their own.
    Case(
        "conv_backward_data", ((2, 6, 3, 5), W), {"x_shape": X, **GEOMETRY},
        _reference("conv_backward_data", "dy", "w"),
    ),
    Case(
        "conv_backward_filter", ((2, 6, 3, 5), X), {"w_shape": W, **GEOMETRY},
        _reference("conv_backward_filter", "dy", "x"),
    ),
    Case("conv_backward_bias", (X,), {}, _reference("conv_backward_bias", "dy")),
    Case(
        "activation_backward", ((3, 4),) * 3, {"mode": "relu"},
        _reference("activation_backward", "dy", "x", "y"),
    ),
    Case(
        "pool_backward", ((2, 4, 3, 2), X, (2, 4, 3, 2)), {"window": (2, 2), "mode": "average_inc_pad"},
        _reference("pool_backward", "dy", "x", "y"),
    ),
    Case(
        "ada_layer_norm", ((2, 3, 16), (2, 16), (2, 16)), {},
        _reference("ada_layer_norm", "x", "scale", "bias"), "float32",
    ),
    Case("affine_grid", ((2, 2, 3),), {"shape": (2, 4, 5)}, _reference("affine_grid", "theta"), "float32"),
    Case("affine_grid_backward", ((2, 4, 5, 2),), {}, _reference("affine_grid_backward", "dgrid"), "float32"),
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
    if case.name == "activation_backward":
        made[2] = np.maximum(made[1], 0)
    found = [None if array is None else array.astype(case.dtype) for array in made]
    if case.name == "ctc_loss":
        found[1:] = [np.array(one, "int32") for one in ([[1, 2], [3, 3]], [2, 2], [6, 5])]
    return found


def call(case: Case, *operands: Any) -> Any:
    """Call a function of `cudnn_ct.jax`, or a row of the table, and return its first result."""
    from cudnn_ct import jax as ctj
    from cudnn_ct.jax.operators import apply

    own = getattr(ctj, case.name, None)
    found = own(*operands, **case.keywords) if own else apply(case.name, operands, **case.keywords)
    assert isinstance(found, tuple) == (case.name in SEVERAL)
    return found[0] if isinstance(found, tuple) else found


def function_of(case: Case, operands: list[Any]) -> tuple[Any, list[Any]]:
    """Return a function of the operands that are given, and these operands."""
    places = [place for place, one in enumerate(operands) if one is not None]

    def function(*arrays: Any) -> Any:
        filled = [None] * len(operands)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return call(case, *filled)

    return function, [operands[place] for place in places]


def differentiable(case: Case) -> list[int]:
    """Return the places of the given operands that have gradients."""
    from cudnn_ct.gradients.formulas import needs_of
    from cudnn_ct.gradients.table import OPERATIONS

    given = [place for place, shape in enumerate(case.shapes) if shape is not None]
    if case.name not in OPERATIONS:  # networks
        return given
    row = OPERATIONS[case.name]
    params = {one: case.keywords.get(one, param.default) for one, param in row.params.items()}
    needs = needs_of(row, params)
    no_second = {"activation_backward": (0,), "pool_backward": (0,)}.get(case.name, tuple(given))
    return [place for place in given if row.operands[place] in needs and place in no_second]


def check_gradients(case: Case) -> None:
    """Compare the gradients inside ``jax.jit`` with differences; raise AssertionError if they are far.

    Half precision is called from float32, whose steps are longer than the rounding.
    """
    import jax
    import jax.numpy as jnp
    from jax.test_util import check_grads

    operands, places = operands_of(case), differentiable(case)

    def function(*arrays: Any) -> Any:
        filled = [None if one is None else jnp.asarray(one) for one in operands]
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array.astype(case.dtype)
        y = call(case, *filled)
        return y.astype("float32") if case.dtype == "float16" else y

    given = [operands[place] for place in places]
    if case.dtype == "float16":
        given = [one.astype("float32") for one in given]
    near, step = GRADIENTS[case.dtype]
    check_grads(jax.jit(function), given, 1, modes=["rev"], eps=step, atol=near, rtol=near)


# The tolerance of a gradient, and the step of differences.
GRADIENTS = {"float64": (1e-4, 1e-5), "float32": (3e-2, 1e-2), "float16": (0.1, 0.05)}


def mapped(case: Case, split: bool = False) -> tuple[Any, Any]:
    """Return the result of ``jax.vmap`` over all operands of three calls, and that of a loop.

    With ``split``, each device has two calls, by ``jax.shard_map``.
    """
    import jax
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    made = [function_of(case, operands_of(case, seed)) for seed in range(2 * mesh.size if split else 3)]
    function, samples = made[0][0], [given for _, given in made]
    many: Any = jax.vmap(function)
    if split:
        over = PartitionSpec("d")
        many = jax.shard_map(many, mesh=mesh, in_specs=(over,) * len(samples[0]), out_specs=over)
    found = jax.jit(many)(*map(np.stack, zip(*samples, strict=True)))
    return found, np.stack([function(*given) for given in samples])


# A program that compares each case, split over all devices, with a loop.
SPLIT = """
import json, numpy as np, jax
jax.config.update("jax_enable_x64", True)
from tests.jax_cases import CASES, mapped
far = {}
for case in CASES:
    found, expected = (np.asarray(one, np.float64) for one in mapped(case, split=True))
    far[str(case)] = float(abs(found - expected).max() / abs(expected).max())
print(json.dumps({"devices": len(jax.devices()), "far": far}))
"""

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
