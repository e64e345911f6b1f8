"""The table of operations with a gradient, on the NumPy reference, compared with differences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import erf, pi
from typing import Any, NamedTuple

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference
from cudnn_ct.gradients.formulas import Backward, Row, arguments, needs_of, saved_names
from cudnn_ct.gradients.table import OPERATIONS

STEP = 1e-5


class Reference:
    """The rows of the table as functions of NumPy arrays."""

    broadcast_to = staticmethod(np.broadcast_to)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        row = OPERATIONS[name]

        def call(*arrays: Any, **params: Any) -> Any:
            return results_of(row, arrays, params)

        return call

    @staticmethod
    def gelu_backward(dy: Any, x: Any, approximate: str) -> Any:
        if approximate == "tanh":
            raise NotImplementedError
        cdf = 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))
        return dy * (cdf + x * np.exp(-(x**2) / 2) / (2 * pi) ** 0.5)


def results_of(row: Row, arrays: Any, params: Mapping[str, Any]) -> Any:
    """Return the only result of a row, or a tuple of its results."""
    values = {name: param.default for name, param in row.params.items()} | dict(params)
    operands = dict(zip(row.operands, arrays, strict=False))
    axes = next(iter(operands.values())).ndim - 2
    keywords = arguments(row, values, operands, axes)
    function = getattr(reference, row.function)
    known = inspect.signature(function).parameters
    assert set(keywords) <= set(known), f"{set(keywords) - set(known)} are not parameters of {row.function}"
    found = function(**keywords)
    if len(row.results) == 1:
        return getattr(found, row.results[0], found)
    return tuple(getattr(found, name) for name in row.results)


class Case(NamedTuple):
    """A call of a row: shapes of operands (None for one that is not given), parameters, values by name."""

    name: str
    shapes: dict[str, tuple[int, ...] | None]
    params: dict[str, Any] = {}  # noqa: RUF012
    values: dict[str, Any] = {}  # noqa: RUF012

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.params.values())]).replace(" ", "")


X, W = (2, 4, 5, 6), (6, 2, 3, 2)
CONV = {"padding": (1, 0), "stride": (2, 1), "groups": 2}
UNEVEN = {"padding": (0, 1, 1, 0), "stride": (2, 1), "groups": 2}
Y = (2, 6, 3, 5)
NORM = {"x": (3, 4, 5), "scale": (4,), "bias": (4,)}
LOGITS = {"logits": (6, 2, 4), "labels": None, "label_lengths": None, "input_lengths": None}
CTC = {"labels": [[1, 2], [3, 3]], "label_lengths": [2, 2], "input_lengths": [6, 5]}
QKV = {"q": (2, 4, 5, 8), "k": (2, 2, 6, 8), "v": (2, 2, 6, 8), "bias": None}
FUSED = {"x": X, "w": W, "bias": (6,), "residual": Y}
MATMUL = {"a": (2, 3, 4), "b": (4, 5), "bias": (5,), "residual": (2, 3, 5)}
CASES = [
    Case("conv", {"x": X, "w": W}, CONV),
    Case("conv", {"x": X, "w": W}, UNEVEN | {"mode": "convolution"}),
    Case("conv_backward_data", {"dy": Y, "w": W}, {"x_shape": X, **CONV}),
    Case("conv_backward_filter", {"dy": Y, "x": X}, {"w_shape": W, **CONV}),
    Case("conv_backward_bias", {"dy": Y}),
    Case("conv_transpose", {"x": Y, "w": W}, {**CONV, "output_padding": (0, 0)}),
    *(
        Case("conv_bias_activation", FUSED, CONV | {"activation": kind})
        for kind in ("identity", "relu", "tanh", "swish", "gelu")
    ),
    Case(
        "conv_bias_activation",
        {"x": X, "w": W, "bias": None, "residual": None},
        CONV | {"activation": "swish"},
    ),
    *(
        Case("activation", {"x": (3, 4)}, {"mode": kind, "coefficient": number})
        for kind, number in (("identity", 0), ("relu", 0), ("clipped_relu", 0.5), ("sigmoid", 0), ("elu", 2))
    ),
    Case("activation_backward", {"dy": (3, 4), "x": (3, 4), "y": (3, 4)}, {"mode": "relu"}),
    Case("pool", {"x": X}, {"window": (2, 3), "stride": (2, 1), "padding": (1, 1), "mode": "max"}),
    Case("pool", {"x": X}, {"window": (2, 3), "mode": "average_exc_pad", "padding": (1, 1)}),
    Case("pool_backward", {"dy": (2, 4, 2, 2), "x": X, "y": (2, 4, 2, 2)}, {"window": (2, 3), "mode": "sum"}),
    Case("softmax", {"x": (3, 4)}, {"axis": (-1,)}),
    Case("softmax", {"x": (3, 4)}, {"axis": (0,), "algo": "log"}),
    Case("lrn", {"x": (2, 6, 3, 3)}),
    *(
        Case("batch_norm_training", NORM | {"residual": (3, 4, 5)}, {"activation": kind})
        for kind in (None, "relu")
    ),
    Case("batch_norm_inference", NORM | {"mean": (4,), "var": (4,)}, {}, {"var": np.full(4, 2.0)}),
    Case("instance_norm", NORM),
    Case("group_norm", NORM, {"groups": 2}),
    Case("layer_norm", {"x": (3, 4), "scale": (4,), "bias": (4,)}),
    Case("ada_layer_norm", {"x": (2, 3, 4), "scale": (2, 4), "bias": (2, 4)}),
    Case("rms_norm", {"x": (3, 4), "scale": (4,), "bias": (4,)}),
    Case("rms_norm", {"x": (3, 4), "scale": (4,), "bias": None}),
    *(
        Case("matmul", MATMUL, {"activation": kind, "alpha": 0.5})
        for kind in (None, "relu", "sigmoid", "gelu", "silu")
    ),
    Case("matmul", {"a": (4,), "b": (4, 5), "bias": None, "residual": None}),
    Case("attention", QKV, {"causal": "top_left", "scale": 0.3}),
    Case("attention", QKV | {"bias": (1, 4, 5, 6)}),
    Case("ctc_loss", LOGITS, {}, CTC),
    Case("affine_grid", {"theta": (2, 2, 3)}, {"shape": (2, 1, 3, 4)}),
    Case("affine_grid_backward", {"dgrid": (2, 3, 4, 2)}),
    Case("grid_sample", {"x": X, "grid": (2, 3, 3, 2)}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_differences(case: Case) -> None:
    row, rng = OPERATIONS[case.name], np.random.default_rng(7)
    operands = {
        name: case.values.get(name) if shape is None or name in case.values else rng.standard_normal(shape)
        for name, shape in case.shapes.items()
    }
    params = {name: param.default for name, param in row.params.items()} | case.params

    def first(**changed: Any) -> Any:
        found = results_of(row, tuple((operands | changed).values()), params)
        return found[0] if len(row.results) > 1 else found

    found = results_of(row, tuple(operands.values()), params)
    results = dict(zip(row.results, found if len(row.results) > 1 else (found,), strict=True))
    y = results[row.results[0]]
    dy = rng.standard_normal(y.shape)
    wanted = frozenset(
        name for name in needs_of(row, params) if operands.get(name) is not None and np.ndim(operands[name])
    )
    known = operands | results
    saved = {name: known.get(name) for name in saved_names(row, params, wanted)}
    shapes = {name: np.shape(array) for name, array in operands.items() if array is not None}
    assert row.gradient is not None
    backward = Backward({**saved, f"d{row.results[0]}": dy}, shapes, params, wanted)
    gradients = row.gradient(Reference(), backward)
    assert wanted
    for name in wanted:
        change = rng.standard_normal(operands[name].shape)
        up, down = (first(**{name: operands[name] + step * change}) for step in (STEP, -STEP))
        expected = np.sum(dy * (up - down)) / (2 * STEP)
        assert gradients[name].shape == operands[name].shape
        assert np.sum(gradients[name] * change) == pytest.approx(expected, rel=2e-4, abs=1e-6), name


def test_each_gradient_has_a_case() -> None:
    assert {case.name for case in CASES} == {name for name, row in OPERATIONS.items() if row.gradient}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_calls_its_public_function(name: str) -> None:
    row = OPERATIONS[name]
    known = inspect.signature(getattr(ct, row.function)).parameters
    given = {*row.operands, *row.params, *row.fixed}
    assert given <= set(known)
    assert {name for name, one in known.items() if one.default is one.empty and one.kind < 3} <= given
    assert {*row.optional, *row.updated} <= set(row.operands)
    assert set(row.batch) <= {*row.operands, *row.results}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("activation_backward", {"mode": "tanh"}, "second derivative of tanh"),
        ("pool_backward", {"mode": "max"}, "second gradient of a maximum"),
    ],
)
def test_a_second_derivative_is_rejected_when_cudnn_has_none(
    name: str, params: dict[str, Any], message: str
) -> None:
    row = OPERATIONS[name]
    assert row.gradient is not None
    with pytest.raises(NotImplementedError, match=message):
        row.gradient(Reference(), Backward({}, {}, params, frozenset({"dy"})))


def test_padding_is_a_number_for_each_axis_or_for_each_side() -> None:
    row = OPERATIONS["conv"]
    params = {name: param.default for name, param in row.params.items()}

    def padding(*numbers: int, axes: int) -> Any:
        return arguments(row, params | {"padding": numbers}, {}, axes)["padding"]

    assert padding(1, axes=2) == 1
    assert padding(1, 2, axes=2) == (1, 2)
    assert padding(1, 2, axes=1) == ((1, 2),)
    assert padding(1, 2, 3, 4, axes=2) == ((1, 2), (3, 4))


NAMES = [
    ("pool", "mode", "max"),
    ("pool", "mode", "sum"),
    ("activation", "mode", "identity"),
    ("activation", "mode", "tanh"),
    ("activation_backward", "mode", "relu"),
    ("conv_bias_activation", "activation", "tanh"),
    ("conv_bias_activation", "activation", "identity"),
    ("matmul", "activation", "gelu"),
]


@pytest.mark.parametrize(("name", "param", "value"), NAMES)
def test_names_in_upper_case_have_the_same_gradient(name: str, param: str, value: str) -> None:
    """Public functions take names in any case, and the gradient of another mode is a wrong number."""
    row = OPERATIONS[name]

    def calls(value: str) -> list[Any]:
        params = {one: known.default for one, known in row.params.items()} | {param: value}
        wanted = frozenset(needs_of(row, params))
        read = saved_names(row, params, wanted)
        made: list[Any] = []

        class Recorded:
            def __getattr__(self, function: str) -> Callable[..., Any]:
                return lambda *arrays, **_: made.append((function, arrays)) or "result"

        given = f"d{row.results[0]}"
        arrays = {**dict.fromkeys(row.operands), **{one: one for one in read}, given: given}
        assert row.gradient is not None
        row.gradient(Recorded(), Backward(arrays, dict.fromkeys(row.operands), params, wanted))
        return [read, *made]

    assert calls(value.upper()) == calls(value)
