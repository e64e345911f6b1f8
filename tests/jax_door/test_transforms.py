"""Transformations of JAX over functions of `cudnn_ct.jax`, compared with those of jax.numpy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from cudnn_ct import jax as ctj  # noqa: E402

if jax.default_backend() != "cpu":
    pytest.skip("these tests are for the CPU; tests/gpu has those of a GPU", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("float64")


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def near(found: Any, expected: Any, far: float = 1e-9) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=far, atol=far)


# --- vmap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 3, 0), (2, 0, 3)], ids=str)
def test_vmap_of_activations_of_any_shape(shape: tuple[int, ...]) -> None:
    (x,) = drawn(shape)
    ours, theirs = partial(ctj.activation, mode="tanh"), jnp.tanh
    for _ in shape:
        ours, theirs = jax.vmap(ours), jax.vmap(theirs)
        near(ours(x), theirs(x))
    gradient = jax.vmap(jax.grad(lambda x: ctj.activation(x, "tanh").sum()))
    near(gradient(x), 1 - jnp.tanh(x) ** 2)


def test_vmap_of_filters_without_elements() -> None:
    x, w = drawn((2, 3, 4, 6, 6), (0, 4, 3, 3))
    assert jax.vmap(ctj.conv, (0, None))(x, w).shape == (2, 3, 0, 4, 4)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_attention_with_a_bias_is_one_call(batch: int, axes: Any) -> None:
    shapes = ((2, 2, 4, 8), (batch, 1, 4, 4))
    x, bias = drawn(*[one if axis is None else (3, *one) for one, axis in zip(shapes, axes, strict=True)])
    x, bias = (one.astype("float32") for one in (x, bias))

    def ours(x: Any, bias: Any) -> Any:
        return ctj.attention(x, x, x, bias)

    def theirs(x: Any, bias: Any) -> Any:
        scores = jnp.einsum("bhsd,bhtd->bhst", x, x) / 8**0.5 + bias
        return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores), x)

    near(jax.vmap(ours, axes)(x, bias), jax.vmap(theirs, axes)(x, bias), 1e-5)
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(ours, axes))(x, bias))

    def gradients(function: Any) -> Any:
        return jax.grad(lambda *operands: (jax.vmap(function, axes)(*operands) ** 2).sum(), (0, 1))(x, bias)

    near(gradients(ours), gradients(theirs), 1e-4)


def test_vmap_outside_of_jit_compiles_once(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that is compiled again for each call is slow, and JAX keeps each program."""
    x, w = drawn((2, 1, 2, 4, 4), (2, 3, 2, 3, 3))
    jax.vmap(ctj.conv)(x, w)
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        jax.vmap(ctj.conv)(x, w)
    assert [one.getMessage() for one in caplog.records if "Compiling" in one.getMessage()] == []


# --- derivatives -------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (ctj.softmax, partial(jax.nn.softmax, axis=-1)),
    "group_norm": (
        lambda x: ctj.group_norm(x.reshape(1, 3, 4), jnp.ones(3), jnp.ones(3)),
        lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-5) + 1,
    ),
    "batch_norm_training": (
        lambda x: ctj.batch_norm_training(x, jnp.ones(4), jnp.ones(4))[0],
        lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5) + 1,
    ),
    "matmul": (lambda x: ctj.matmul(x, x.T), lambda x: x @ x.T),
    "network": (
        lambda x: ctj.rnn(x[None], jnp.full(40, 0.1), mode="rnn_tanh", hidden_size=4).y,
        lambda x: jnp.tanh(0.1 * x.sum(1, keepdims=True) + 0.2 + jnp.zeros(4)),
    ),
}
WEIGHTS = np.random.default_rng(1).standard_normal(12)


def losses(name: str) -> list[Callable[[Any], Any]]:
    def loss(function: Any, x: Any) -> Any:
        y = function(x).ravel()
        return (y * WEIGHTS[: y.size] * y).sum()

    return [partial(loss, function) for function in FUNCTIONS[name]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_that_no_result_uses_may_be_differentiated(name: str) -> None:
    """As steps along a gradient that is kept constant, and the value of ``jax.value_and_grad``."""
    (x,) = drawn((3, 4))

    def step(loss: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(x)
        return value + loss(x - 0.1 * lax.stop_gradient(gradient))

    ours, theirs = losses(name)
    for transform in (lambda function: function, jax.jit, jax.checkpoint):
        near(transform(jax.grad(partial(step, ours)))(x), jax.grad(partial(step, theirs))(x), 1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivative_that_is_used_is_an_error(name: str) -> None:
    (x,) = drawn((3, 4))
    loss = losses(name)[0]
    with pytest.raises(NotImplementedError, match=r"the (second )?derivative of \w+ is not supported"):
        jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(x)


def test_second_derivative_of_relu_is_zero() -> None:
    (x,) = drawn((3, 4))
    found = jax.grad(lambda x: jax.grad(lambda x: ctj.activation(x).sum())(x).sum())(x)
    np.testing.assert_array_equal(found, np.zeros((3, 4)))


@pytest.mark.parametrize("name", ["softmax", "batch_norm_training"])
def test_function_inside_control_flow_has_the_gradients_of_jax(name: str) -> None:
    (x,) = drawn((3, 4))

    def programs(function: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
        def body(x: Any, _: Any) -> tuple[Any, Any]:
            y = function(x).reshape(3, 4) + x
            return y, y.sum()

        return [
            lambda x: lax.scan(body, x, None, length=3)[0],
            lambda x: lax.scan(body, x, None, length=3)[1],
            lambda x: lax.fori_loop(0, 3, lambda _, x: body(x, None)[0], x),
            lambda x: lax.cond(x.sum() > 0, lambda x: body(x, None)[0], lambda x: 2 * x, x),
            jax.checkpoint(lambda x: lax.map(lambda row: body(x * row.sum(), None)[0], x)),
        ]

    for ours, theirs in zip(*map(programs, FUNCTIONS[name]), strict=True):
        gradients = [
            jax.grad(lambda x, one=one: (one(x).ravel() ** 3).sum())(x) for one in (jax.jit(ours), theirs)
        ]
        near(*gradients, 1e-6)


def test_transformations_keep_no_tracer_and_run_without_jit() -> None:
    x, w = drawn((2, 1, 2, 4, 4), (2, 3, 2, 3, 3))

    def loss(x: Any, w: Any) -> Any:
        y = ctj.group_norm(jax.vmap(ctj.conv)(x, w)[0], jnp.ones(3), jnp.ones(3))
        return (y * jnp.arange(y.size).reshape(y.shape)).sum()

    with jax.checking_leaks():
        expected = jax.jit(jax.grad(loss, (0, 1)))(x, w)
    with jax.disable_jit():
        near(jax.grad(loss, (0, 1))(x, w), expected)


# --- draws -------------------------------------------------------------------------------------------------


def drawn_convolution(rng: np.random.Generator) -> tuple[Any, Any, list[Any]]:
    axes, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    window, dilation, stride = (tuple(rng.integers(1, high, axes).tolist()) for high in (4, 3, 4))
    padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (axes, 2)))
    reach = [(w - 1) * d + 1 - sum(p) for w, d, p in zip(window, dilation, padding, strict=True)]
    sizes = [max(int(rng.integers(3, 6)), least) for least in reach]
    channels, filters = (groups * int(rng.integers(1, 3)) for _ in range(2))
    ours = partial(ctj.conv, padding=padding, stride=stride, dilation=dilation, groups=groups)
    theirs = partial(
        lax.conv_general_dilated, window_strides=stride, padding=padding, rhs_dilation=dilation,
        feature_group_count=groups,
    )  # fmt: skip
    shapes = ((int(rng.integers(1, 3)), channels, *sizes), (filters, channels // groups, *window))
    return ours, theirs, [rng.standard_normal(shape) for shape in shapes]


def drawn_pooling(rng: np.random.Generator) -> tuple[Any, Any, list[Any]]:
    axes, mode = int(rng.integers(1, 4)), str(rng.choice(["MAX", "sum", "average_inc_pad"]))
    window, stride = (tuple(rng.integers(1, 4, axes).tolist()) for _ in range(2))
    padding = tuple((int(rng.integers(0, w)), int(rng.integers(0, w))) for w in window)
    first, step = (-jnp.inf, lax.max) if mode == "MAX" else (0.0, lax.add)
    divisor = np.prod(window) if mode == "average_inc_pad" else 1

    def theirs(x: Any) -> Any:
        steps = (1, 1, *window), (1, 1, *stride), ((0, 0), (0, 0), *padding)
        return lax.reduce_window(x, first, step, *steps) / divisor

    ours = partial(ctj.pool, window=window, stride=stride, padding=padding, mode=mode)
    return ours, theirs, [rng.standard_normal((2, 2, *rng.integers(3, 6, axes)))]


def drawn_softmax(rng: np.random.Generator) -> tuple[Any, Any, list[Any]]:
    rank = int(rng.integers(1, 5))
    first, log = int(rng.integers(0, rank)), bool(rng.integers(0, 2))
    axes = [int(rng.choice([axis, axis - rank])) for axis in range(first, int(rng.integers(first, rank)) + 1)]
    theirs = partial(jax.nn.log_softmax if log else jax.nn.softmax, axis=tuple(axes))
    return partial(ctj.softmax, axis=axes, log=log), theirs, [rng.standard_normal(rng.integers(1, 5, rank))]


def drawn_product(rng: np.random.Generator) -> tuple[Any, Any, list[Any]]:
    sizes = rng.integers(1, 4, 2).tolist()
    ones = [[int(rng.choice([1, n])) for n in sizes][int(rng.integers(0, 3)) :] for _ in range(2)]
    rows, inner, columns = rng.integers(1, 5, 3).tolist()
    shapes = ((*ones[0], rows, inner), (*ones[1], inner, columns), (columns,))
    name = str(rng.choice(["relu", "gelu", "silu", "tanh"]))
    function = partial(jax.nn.gelu, approximate=False) if name == "gelu" else getattr(jax.nn, name)
    ours = partial(ctj.matmul, activation=name, alpha=0.5)
    return ours, lambda a, b, bias: function(0.5 * a @ b + bias), [rng.standard_normal(one) for one in shapes]


DRAWS = (drawn_convolution, drawn_pooling, drawn_softmax, drawn_product)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_drawn_call_and_its_derivatives_equal_those_of_jax(draw: Any, seed: int) -> None:
    """Values, gradients of drawn operands, and vmap over drawn axes, inside and outside of the gradient."""
    rng = np.random.default_rng([seed, len(draw.__name__)])
    ours, theirs, arrays = draw(rng)
    places = tuple(sorted(rng.choice(len(arrays), rng.integers(1, len(arrays) + 1), replace=False).tolist()))
    axes = [int(rng.integers(-one.ndim - 1, one.ndim + 1)) if rng.random() < 0.6 else None for one in arrays]
    axes[places[0]] = 0
    print(ours, [one.shape for one in arrays], places, axes)
    many = [
        one if axis is None else np.stack([one, 2 * one, -one], axis)
        for one, axis in zip(arrays, axes, strict=True)
    ]

    def results(function: Any) -> Any:
        def loss(*operands: Any) -> Any:
            return (function(*operands) ** 2).sum()

        def losses(*operands: Any) -> Any:
            return jax.vmap(loss, axes)(*operands).sum()

        return (
            jax.jit(function)(*arrays),
            jax.vmap(function, axes)(*many),
            jax.jit(jax.grad(losses, places))(*many),
            jax.vmap(jax.grad(loss, places), axes)(*many),
        )

    near(results(ours), results(theirs), 1e-8)
