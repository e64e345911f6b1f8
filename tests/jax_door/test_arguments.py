"""Arguments of `cudnn_ct.jax`: parameters as values of Python, and operands that are checked by a trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import ShapeDtypeStruct as Shape  # noqa: E402

import cudnn_ct as ct  # noqa: E402
from cudnn_ct import jax as ctj  # noqa: E402

if jax.default_backend() != "cpu":
    pytest.skip("these tests are for the CPU; tests/gpu has those of a GPU", allow_module_level=True)

X, W, ROWS = Shape((2, 4, 6, 6), "float32"), Shape((4, 2, 3, 3), "float32"), Shape((3, 4), "float32")
SCALE, HEADS = Shape((4,), "float32"), Shape((1, 2, 8, 16), "float16")
NETWORK = (Shape((5, 2, 3), "float32"), Shape((144,), "float32"))
CTC = (Shape((6, 2, 4), "float32"), Shape((2, 2), "int32"), Shape((2,), "int32"), Shape((2,), "int32"))


def drawn(*shapes: Shape) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(one.shape), one.dtype) for one in shapes]


# A function, its operands, a parameter, its value, and other spellings of the value.
SPELLINGS: list[tuple[Callable[..., Any], tuple[Shape, ...], str, Any, tuple[Any, ...]]] = [
    (ctj.softmax, (ROWS,), "axis", 1, (np.int64(1), jnp.int32(1), [1], (np.int8(1),), np.array([1]))),
    (ctj.conv, (X, W), "groups", 2, (np.int64(2), jnp.int32(2))),
    (ctj.conv, (X, Shape((4, 4, 3, 3), "float32")), "stride", (1, 2), (jnp.array([1, 2]), np.array([1, 2]))),
    (partial(ctj.pool, window=2), (X,), "stride", (1, 2), ([1, 2], np.array([1, 2]), jnp.array([1, 2]))),
    (partial(ctj.pool, stride=1), (X,), "window", 2, (np.int64(2), jnp.array(2), jnp.array([2, 2]))),
    (ctj.lrn, (X,), "n", 3, (np.int64(3), jnp.int32(3))),
    (ctj.lrn, (X,), "alpha", 0.5, (np.float32(0.5), jnp.float32(0.5))),
    (ctj.group_norm, (X, SCALE, SCALE), "groups", 2, (np.int64(2), jnp.int32(2))),
    (ctj.layer_norm, (ROWS, SCALE), "epsilon", 0.5, (np.float32(0.5), np.float64(0.5), jnp.float32(0.5))),
    (ctj.layer_norm, (ROWS, SCALE), "epsilon", 1.0, (1, True, np.int8(1))),
    (ctj.attention, (HEADS,) * 3, "scale", 0.5, (np.float16(0.5), jnp.float32(0.5))),
    (ctj.attention, (HEADS,) * 3, "window", (2, 1), ([2, 1], np.array([2, 1]), (np.int64(2), 1))),
    (ctj.attention, (HEADS,) * 3, "causal", "top_left", (True, np.True_, "TOP_LEFT")),
    (ctj.attention, (HEADS,) * 3, "causal", None, (False,)),
    (partial(ctj.pool, window=2), (X,), "mode", "max", ("MAX", "Max")),
    (ctj.activation, (X,), "mode", "identity", ("IDENTITY",)),
    (ctj.matmul, (ROWS, Shape((4, 3), "float32")), "activation", "gelu", ("GELU",)),
    (partial(ctj.rnn, hidden_size=4), NETWORK, "mode", "lstm", ("LSTM",)),
    (partial(ctj.rnn, mode="lstm"), NETWORK, "hidden_size", 4, (np.int64(4), jnp.int32(4))),
    (partial(ctj.rnn, mode="lstm", hidden_size=4), NETWORK, "lengths", (5, 2), (jnp.array([5, 2]), [5, 2])),
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one[2])
def test_parameter_has_the_same_program_in_each_spelling(spelling: Any) -> None:
    """The program of the gradient too: formulas compare names, which the forward pass takes in any case."""
    function, operands, name, value, others = spelling

    def program(value: Any) -> str:
        def loss(*operands: Any) -> Any:
            found = jax.tree.leaves(function(*operands, **{name: value}))
            return sum((one.astype("float32") ** 2).sum() for one in found)

        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(jax.grad(loss))(*operands)))

    assert {program(other) == program(value) for other in others} == {True}


TRACED = [
    (ctj.softmax, (ROWS,), "axis", 1),
    (ctj.softmax, (ROWS,), "log", True),
    *((ctj.conv, (X, W), name, 1) for name in ("stride", "padding", "dilation", "groups")),
    (ctj.conv_transpose, (X, W), "output_padding", 0),
    *((partial(ctj.pool, window=2), (X,), name, 2) for name in ("stride", "padding")),
    (ctj.pool, (X,), "window", 2),
    (ctj.activation, (X,), "coefficient", 0.5),
    *((ctj.lrn, (X,), name, 1) for name in ("n", "alpha", "beta", "k")),
    (ctj.layer_norm, (ROWS, SCALE), "epsilon", 1e-5),
    (ctj.batch_norm_training, (X, SCALE, SCALE), "epsilon", 1e-5),
    (ctj.matmul, (ROWS, Shape((4, 3), "float32")), "alpha", 1.0),
    (ctj.attention, (HEADS,) * 3, "scale", 0.5),
    (partial(ctj.rnn, mode="lstm"), NETWORK, "hidden_size", 4),
    (partial(ctj.rnn, mode="lstm", hidden_size=4), NETWORK, "lengths", [5, 2]),
]


@pytest.mark.parametrize("case", TRACED, ids=lambda one: one[2])
def test_traced_parameter_is_an_error_that_names_it(case: Any) -> None:
    function, operands, name, value = case
    with pytest.raises(
        TypeError, match=rf"^{name} is traced: got .*, expected .*; add it to static_argnames"
    ):
        jax.jit(lambda value, *operands: function(*operands, **{name: value})).lower(value, *operands)


WRONG: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("None", lambda: ctj.softmax(None), TypeError, "^x is not an array: got NoneType"),
    ("shape", lambda: ctj.softmax(ROWS), TypeError, "^x is not an array: got ShapeDtypeStruct"),
    ("tree", lambda: ctj.conv({"x": 1}, 1), TypeError, "^x is not an array: got dict"),
    ("weights", lambda: ctj.conv(jnp.ones(X.shape), None), TypeError, "^w is not an array: got NoneType"),
    ("axis", lambda: ctj.softmax(jnp.ones(4), None), TypeError, "^axis must be an int: got None"),
    ("no axis", lambda: ctj.softmax(jnp.ones(4), ()), ValueError, r"^axis is empty: got \(\)"),
    ("coefficient", lambda: ctj.activation(1.0, coefficient="1"), TypeError, "^coefficient must be a number"),
    ("window", lambda: ctj.conv(jnp.ones(X.shape), jnp.ones((3, 3))), ValueError, "^w has 2 dimensions"),
    ("key", lambda: ctj.softmax(jax.random.key(0)), TypeError, "cuDNN has no dtype key"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda one: one[0])
def test_wrong_argument_is_named(case: Any) -> None:
    _, call, kind, text = case
    with pytest.raises(kind, match=text):
        call()


CHECKED = [
    (ctj.ctc_loss, (*CTC[:1], Shape((1, 2), "int32"), *CTC[2:]), "labels has the wrong shape"),
    (ctj.ctc_loss, (*CTC[:1], Shape((4,), "int32"), *CTC[2:]), "labels has the wrong rank"),
    (ctj.ctc_loss, (*CTC[:1], Shape((2, 2), "float32"), *CTC[2:]), "labels has the wrong dtype: got float32"),
    (ctj.ctc_loss, (*CTC[:3], Shape((3,), "int32")), "input_lengths has the wrong shape"),
    (ctj.ctc_loss, (Shape((6, 2), "float32"), *CTC[1:]), r"logits have shape \(6, 2\)"),
    (ctj.ctc_loss, (Shape((6, 2, 4), "int32"), *CTC[1:]), "ctc_loss takes float16"),
    (ctj.rnn, (NETWORK[0], Shape((144,), "float16")), "x is float32 and w is float16"),
    (ctj.rnn, (*NETWORK, Shape((1, 2, 4), "float16")), "x is float32 and h0 is float16"),
    (ctj.rnn, (Shape((), "float32"), NETWORK[1]), "x has the wrong rank: got shape ()"),
]


@pytest.mark.parametrize("case", CHECKED, ids=lambda one: one[2])
def test_operands_are_checked_when_jax_traces(case: Any) -> None:
    function, operands, text = case
    keywords = {"mode": "lstm", "hidden_size": 4} if function is ctj.rnn else {}
    with pytest.raises((TypeError, ValueError), match=text):
        jax.eval_shape(partial(function, **keywords), *operands)


def test_labels_may_be_int64(float64: None) -> None:
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((6, 2, 4)))
    integers = [np.array(one) for one in ([[1, 2], [3, 3]], [2, 2], [6, 5])]
    assert {one.dtype.name for one in integers} == {"int64"}
    found = jax.jit(ctj.ctc_loss)(logits, *integers)
    expected = ctj.ctc_loss(logits, *[one.astype("int32") for one in integers])
    np.testing.assert_array_equal(found, expected)


def test_symbolic_shape_is_an_error_that_names_the_operand() -> None:
    from jax import export

    shape = Shape(export.symbolic_shape("n, 4"), "float32")
    with pytest.raises(TypeError, match=r"^x has a symbolic shape: got \(n, 4\), expected ints"):
        export.export(jax.jit(ctj.softmax))(shape)


def test_epsilon_of_numpy_keeps_the_dtype_of_the_variance(float64: None) -> None:
    x, ones = jnp.ones((2, 3, 4, 4), "float32"), jnp.ones(3, "float32")
    found = ctj.batch_norm_training(x, ones, ones, epsilon=np.float64(1e-3))
    assert [one.dtype.name for one in found] == ["float32"] * 3


class WithoutTextError(ValueError):
    def __str__(self) -> str:
        raise KeyError


NOTED = ValueError("the text of the error")
NOTED.add_note("and a note")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NOTED, "INVALID_ARGUMENT: ValueError: the text of the error\nand a note"),
        (ValueError("a name \udc80"), r"a name \\udc80"),
        (WithoutTextError(), "WithoutTextError"),
    ],
)
def test_error_of_a_handler_may_have_any_text(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX takes an exception that leaves the handler for a success, and returns memory without a result."""

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ct.reference, "lrn", fails)
    with pytest.raises(Exception, match=text):
        ctj.lrn(jnp.ones((1, 3, 2, 2))).block_until_ready()


@pytest.mark.parametrize("epsilon", [1e-5, 3e-5, 1e-3])
def test_variance_of_a_batch_is_not_negative(epsilon: float) -> None:
    """It is computed from the inverse standard deviation, by a difference."""
    x, ones = jnp.full((2, 3, 4, 4), 0.1), jnp.ones(3)
    assert float(ctj.batch_norm_training(x, ones, ones, epsilon=epsilon)[2].min()) >= 0
