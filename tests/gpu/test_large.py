"""Implementations that only large arrays have, on a GPU against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream
from tests.both.tensors import integers
from tests.layers import FLOATS, Tensor, compare

from .conftest import library, place

# The packages have functions of these names.
activation = import_module("cudnn_ct.ops.activation")
reduction = import_module("cudnn_ct.ops.reduce.plans")
pooling = import_module("cudnn_ct.ops.pooling")
tensor = import_module("cudnn_ct.ops.tensor")

HALF_AND_SINGLE = ("float16", "bfloat16", "float32")
NAN = float("nan")


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    """Select implementations again in each test, and leave no plans to other tests."""
    calls = context.current(stream.current_stream()).calls
    calls.clear()
    yield
    calls.clear()


def chosen() -> str:
    """Return the implementation of the last call."""
    plan = ct.last_plan()
    assert plan is not None
    return plan.plan


# --- reductions --------------------------------------------------------------------------------------------

MATRICES = {  # a shape, its layout, and the axes of the reduction
    "rows": ((300, 77), "nchw", 1),
    "long rows": ((130, 9001), "nchw", 1),
    "short rows": ((4099, 9), "nchw", 1),
    "few rows": ((3, 5, 64, 96), "nchw", (2, 3)),
    "columns": ((1003, 40), "nchw", 0),
    "odd columns": ((513, 3), "nchw", 0),
    "one column": ((64, 1, 96), "nchw", (0, 2)),
    "channels last": ((3, 24, 17, 19), "nhwc", (0, 2, 3)),
    "channels first": ((6, 24, 17, 19), "nchw", (0, 2, 3)),
    "all": ((64, 9, 32), "nchw", None),
}


@pytest.mark.parametrize("op", ["add", "average", "norm1", "norm2", "amax", "max", "min"])
@pytest.mark.parametrize("matrix", MATRICES)
def test_reduce_by_graphs_equals_reference(monkeypatch: pytest.MonkeyPatch, op: str, matrix: str) -> None:
    monkeypatch.setattr(reduction, "MIN_ELEMENTS", 0)
    shape, layout, axes = MATRICES[matrix]
    for dtype in HALF_AND_SINGLE:
        values = integers(shape, dtype, 2)
        x = ct.asarray(values, layout=layout) if layout == "nhwc" else place(values)
        for keywords in ({}, {"keepdims": True}, {"alpha": -0.5, "beta": 2}):
            out = ct.reference.reduce(values, op=op, axis=axes, keepdims="keepdims" in keywords)
            out = np.full(out.shape, 3.0 if "beta" in keywords else NAN, out.dtype)
            expected = ct.reference.reduce(values, op=op, axis=axes, **keywords, out=out.copy())
            got = ct.reduce(x, op=op, axis=axes, **keywords, out=place(out))
            compare(got, expected, exact=op in ("max", "min", "amax"))
            if op in ("norm1", "norm2", "amax"):  # calls for other operations compute sums and means faster
                assert "graph" in chosen(), chosen()


@pytest.mark.parametrize("op", ["add", "average", "norm1", "norm2", "amax", "max", "min"])
@pytest.mark.parametrize(("shape", "axis"), [((9000, 2), 0), ((40_000, 5), 0), ((3, 65_536), 1)])
def test_many_terms_of_few_results(op: str, shape: tuple[int, ...], axis: int) -> None:
    """Each reduction but that to one number is a graph, unless no engine has its form."""
    for dtype in HALF_AND_SINGLE:
        values = integers(shape, dtype, 2)
        got = ct.reduce(place(values), op=op, axis=axis)
        compare(got, ct.reference.reduce(values, op=op, axis=axis), exact=op in ("max", "min", "amax"))
        if op in ("norm1", "norm2", "amax"):
            assert "graph" in chosen(), chosen()


@pytest.mark.parametrize("op", ["add", "norm2", "max", "min", "amax"])
@pytest.mark.parametrize("axes", [0, 1, None])
@pytest.mark.parametrize("shape", [(256, 64), (129, 1000), (40, 3)])
@pytest.mark.parametrize("as_graph", [True, False])
def test_reduce_equals_reference_when_elements_are_not_finite(
    monkeypatch: pytest.MonkeyPatch, as_graph: bool, shape: tuple[int, int], axes: int | None, op: str
) -> None:
    monkeypatch.setattr(reduction, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(ct.config, "allow_runtime_compilation", as_graph)
    for dtype in FLOATS:
        values = integers(shape, dtype, 2)
        values[1:, 2] = values[17, 1:] = -np.inf  # of nothing else, a maximum is the most negative number
        compare(ct.reduce(place(values), op=op, axis=axes), ct.reference.reduce(values, op=op, axis=axes))
        values[1:, 1], values[3, 0], values[20, 2], values[21, :] = np.inf, NAN, NAN, NAN
        for given in ({}, {"alpha": -2}, {"propagate_nan": False}, {"propagate_nan": False, "alpha": -2}):
            expected = ct.reference.reduce(values, op=op, axis=axes, **given)
            got = ct.reduce(place(values), op=op, axis=axes, **given)
            compare(got, expected, exact=op in ("max", "min", "amax"))


# Shapes and axes: rows, columns, whole arrays, images to their channels, columns of several matrices.
SUMS = [
    *(((6, length), 1) for length in (2, 9, 64, 65, 128, 3001, 32_000)),
    *(((rows, length), 1) for rows, length in ((2**14, 64), (2**14 + 1, 9), (131_071, 5), (70_001, 70))),
    *(((length, 40), 0) for length in (2, 300, 8192, 70_001)),
    *(((9, columns), 0) for columns in (3, 4097, 70_001, 1_000_003)),
    *(((length,), None) for length in (2, 77, 32_771, 2**20 + 1)),
    *(
        ((3, 24, 17, 19), (0, 2, 3)),
        ((70_001, 3, 5), (0, 2)),
        ((2, 70_001, 5), (0, 2)),
        ((2, 1, 700), (0, 2)),
    ),
    *(((3, length, 40), 1) for length in (2, 49, 67, 200, 500, 3136, 8191, 8192)),
    *(((70_001, 9, 8), 1), ((3000, 192, 40), 1), ((2, 9, 70_001), 1), ((2, 300, 3), 1)),
    *(((length, columns), 0) for length, columns in ((40_000, 2), (131_072, 7), (262_145, 3), (33_001, 31))),
    *(((2, 2**18), 1), ((3, 5, 2**16), (0, 2)), ((16, 2**15, 3), (0, 1))),
]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("shape", "axes"), SUMS)
def test_sums_of_integers_are_exact(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, shape: tuple[int, ...], axes: Any
) -> None:
    monkeypatch.setattr(ct.config, "allow_runtime_compilation", compiled)
    for dtype in FLOATS:
        values = integers(shape, dtype, 1)
        expected = ct.reference.reduce(values, axis=axes)
        out = place(np.full(expected.shape, NAN, values.dtype))
        compare(ct.reduce(place(values), axis=axes, out=out), expected, exact=True)
        values = np.abs(values) * values.dtype.type(8)  # so that a mean is more than what is rounded
        expected = ct.reference.reduce(values, op="average", axis=axes, alpha=-0.5) + 6
        out = ct.full(expected.shape, 3, dtype)
        compare(ct.reduce(place(values), op="average", axis=axes, alpha=-0.5, beta=2, out=out), expected)


@pytest.mark.parametrize("length", [30, 300])
def test_sums_of_columns_equal_reference_when_elements_are_not_finite(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(ct.config, "allow_runtime_compilation", False)
    for dtype in FLOATS:
        values = integers((2, length, 40), dtype, 2)
        values[0, 1, 0], values[0, 1, 1], values[0, 2:, 2] = NAN, np.inf, -np.inf
        compare(ct.reduce(place(values), axis=1), ct.reference.reduce(values, axis=1))


@pytest.mark.parametrize(("shape", "axes"), SUMS)
def test_mean_is_finite_when_the_sum_exceeds_float16(shape: tuple[int, ...], axes: Any) -> None:
    values = np.full(shape, 60_000, np.float16)
    expected = ct.reference.reduce(values, op="average", axis=axes)
    assert np.isfinite(expected).all()
    compare(ct.reduce(place(values), op="average", axis=axes), expected)


@pytest.mark.parametrize("op", ["add", "average"])
@pytest.mark.parametrize("size", [(7, 7), (56, 56), (1, 300)])
def test_mean_of_images_is_a_pooling(op: str, size: tuple[int, int]) -> None:
    for dtype in FLOATS:
        values = integers((6, 256, *size), dtype, 2)
        got = ct.reduce(ct.asarray(values, layout="nhwc"), op=op, axis=(2, 3))
        compare(got, ct.reference.reduce(values, op=op, axis=(2, 3)))
        assert "cudnnPoolingForward" in chosen()


def test_reduce_uses_no_compiled_engine_when_the_setting_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ct.full((1024, 2048), 1.0)
    monkeypatch.setattr(ct.config, "allow_runtime_compilation", False)
    compare(ct.reduce(x, op="norm1", axis=0), np.full(2048, 1024, np.float32), exact=True)
    assert "cudnnReduceTensor" in chosen()


# --- activations -------------------------------------------------------------------------------------------

MODES = (("relu", 0), ("clipped_relu", 1.5), ("sigmoid", 0), ("tanh", 0), ("elu", 0.7), ("swish", 1.3))


@pytest.mark.parametrize(("mode", "coefficient"), MODES)
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("size", [5, 2048, 3 * 1024 + 5])
def test_activation_by_graphs_equals_reference(
    monkeypatch: pytest.MonkeyPatch, size: int, dtype: str, mode: str, coefficient: float
) -> None:
    monkeypatch.setattr(activation, "MIN_ELEMENTS", 0)
    values, dy = (Tensor((size,), dtype, "floats", seed=seed).array() for seed in (1, 2))
    values[:4] = NAN, np.inf, -np.inf, 0
    expected = ct.reference.activation(values, mode=mode, coefficient=coefficient)
    x, out = place(values), place(np.full(size, NAN, values.dtype))
    compare(ct.activation(x, mode=mode, coefficient=coefficient, out=out), expected)
    assert ("graph" in chosen()) == ((mode, dtype) != ("tanh", "float32"))
    halves = ct.reference.activation(values, mode=mode, coefficient=coefficient, alpha=0.5)
    compare(ct.activation(x, mode=mode, coefficient=coefficient, alpha=0.5), halves)
    compare(ct.activation(x, mode=mode, coefficient=coefficient, out=x), expected)
    if mode == "relu":  # whose gradient at NaN is 0 or dy
        values[0] = -1
        expected = ct.reference.activation(values)
    operands, keywords = (dy, values, expected), {"mode": mode, "coefficient": coefficient}
    gradient = ct.activation_backward(*map(place, operands), **keywords)
    compare(gradient, ct.reference.activation_backward(*operands, **keywords))
    legacy = mode in ("clipped_relu", "elu") or (dtype == "float32" and mode in ("sigmoid", "tanh"))
    assert ("graph" in chosen()) != legacy


@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("size", [5, 2048, 3 * 1024 + 5])
def test_sums_and_products_by_graphs_equal_reference(
    monkeypatch: pytest.MonkeyPatch, size: int, dtype: str, op: str
) -> None:
    monkeypatch.setattr(tensor, "MIN_ELEMENTS", 0)
    a, b = (Tensor((size,), dtype, "floats", seed=seed).array() for seed in (1, 2))
    a[:5], b[:5] = (NAN, np.inf, -np.inf, 0, np.inf), (1, np.inf, np.inf, np.inf, -0.0)
    expected = ct.reference.op_tensor(a, b, op=op)
    x, out = place(a), place(np.full(size, NAN, a.dtype))
    compare(ct.op_tensor(x, place(b), op=op, out=out), expected, exact=True)
    assert "graph" in chosen()
    compare(ct.op_tensor(x, place(b), op=op, out=x), expected, exact=True)
    twice = ct.reference.op_tensor(a, a, op=op)
    compare(ct.op_tensor(*[place(a)] * 2, op=op), twice, exact=True)


# --- softmax and pooling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 1000), (7, 32_000), (3, 5), (1, 9000), (4, 1)])
@pytest.mark.parametrize("algo", ["accurate", "fast", "log"])
def test_softmax_backward_over_rows_equals_reference(algo: str, shape: tuple[int, int]) -> None:
    for dtype in FLOATS:
        x, dy = (Tensor(shape, dtype, "floats", seed=seed).array() for seed in (1, 2))
        y = ct.reference.softmax(x, axis=1, algo=algo)
        out = place(np.full(shape, NAN, y.dtype))
        got = ct.softmax_backward(place(dy), place(y), axis=1, algo=algo, out=out)
        compare(got, ct.reference.softmax_backward(dy, y, axis=1, algo=algo))


AVERAGES = ("average_inc_pad", "average_exc_pad", "sum")
WINDOWS = {"window": (2, 3), "stride": (2, 4), "padding": (1, 0)}
POOLINGS = [(WINDOWS, "nhwc", mode, "copied") for mode in ("max", "max_deterministic", *AVERAGES)]
POOLINGS += [
    ({"window": "global"}, layout, mode, "cudnnAddTensor") for layout in ("nchw", "nhwc") for mode in AVERAGES
]


@pytest.mark.parametrize(("window", "layout", "mode", "implementation"), POOLINGS)
def test_pool_backward_of_large_images_equals_reference(
    monkeypatch: pytest.MonkeyPatch, window: dict[str, Any], layout: str, mode: str, implementation: str
) -> None:
    monkeypatch.setattr(pooling, "LARGE", 0)
    numbers = np.tile(np.arange(32), (48, 1))  # all different in each image
    values = np.random.default_rng(0).permuted(numbers, axis=1).reshape(3, 16, 4, 8)
    for dtype in FLOATS:
        x = Tensor(values.shape, dtype, values).array()
        y = ct.reference.pool(x, **window, mode=mode)
        dy = Tensor(y.shape, dtype, np.random.default_rng(1).integers(-4, 5, y.shape) * 32).array()
        for scales in ({}, {"alpha": -2, "beta": 3}):
            keywords = window | scales | {"mode": mode}
            out = np.full(x.shape, 2.0 if scales else NAN, x.dtype)
            expected = ct.reference.pool_backward(dy, x, y, **keywords, out=out.copy())
            operands = [ct.asarray(array, layout=layout) for array in (dy, x, y)]
            compare(ct.pool_backward(*operands, **keywords, out=ct.asarray(out, layout=layout)), expected)
            assert implementation in chosen()


# --- more elements than a descriptor holds -----------------------------------------------------------------

MANY = 2**19 + 64, 4096  # rows of half precision: 4 GB; 64 of them are an image of the poolings
PARTS = (0, 2**18, MANY[0] - 4096)  # first rows of the parts that are compared
IMAGES = (-1, 64, 64, 64)

ON_ROWS: dict[str, tuple[Any, Any]] = {  # calls, and what torch computes for a part of the rows
    "softmax": (lambda x: ct.softmax(x, axis=1), lambda x: x.softmax(1)),
    "relu": (lambda x: ct.activation(x, mode="relu"), lambda x: x.relu()),
    "add": (lambda x: ct.add(x, x), lambda x: x + x),
    "add expanded": (lambda x: ct.add(x, x[:, :1].expand_as(x)), lambda x: x + x[:, :1]),
    "relu expanded": (lambda x: ct.activation(x[:, :1].expand_as(x)), lambda x: x[:, :1].relu().expand_as(x)),
    "sum": (lambda x: ct.reduce(x, axis=1), lambda x: x.sum(1)),
    "max": (lambda x: ct.reduce(x, axis=1, op="max", keepdims=True), lambda x: x.amax(1, keepdim=True)),
    "pool": (
        lambda x: ct.pool(x.view(IMAGES), window=2, mode="average"),
        lambda x: x.view(-1, 64, 32, 2, 32, 2).mean((3, 5)),
    ),
}


@pytest.fixture(scope="module")
def many() -> Any:
    """More elements than 2**31, in torch."""
    torch = library("torch")
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GB of device memory")
    return torch.randn(MANY, dtype=torch.float16, device="cuda")


def compare_rows(found: Any, x: Any, wanted: Any, tolerance: float) -> None:
    """Compare parts of a result with those that torch computes in float64."""
    torch = library("torch")
    tensor = torch.from_dlpack(found)
    rows = MANY[0] // tensor.shape[0]
    for first in PARTS:
        expected = wanted(x[first : first + 4096].double())
        part = tensor[first // rows : first // rows + expected.shape[0]].double()
        torch.testing.assert_close(part, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.alone
@pytest.mark.parametrize("name", ON_ROWS)
def test_rows_of_more_than_2_31_elements_equal_torch(many: Any, name: str) -> None:
    call, wanted = ON_ROWS[name]
    compare_rows(call(many), many, wanted, 1e-2 if name == "sum" else 2e-3)


@pytest.mark.alone
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_of_more_than_2_31_elements_equal_torch(many: Any, name: str) -> None:
    torch = library("torch")
    scale = torch.rand(4096, device="cuda", dtype=torch.float16)
    bias = [scale] if name == "layer_norm" else []

    def centred(x: Any) -> Any:
        return x - x.mean(1, keepdim=True) if bias else x

    def invstd(x: Any) -> Any:
        return (centred(x).square().mean(1, keepdim=True) + 1e-5).rsqrt()

    y, *statistics = getattr(ct, name)(many, scale, *bias, training=True)
    compare_rows(y, many, lambda x: centred(x) * invstd(x) * scale + (scale if bias else 0), 4e-3)
    compare_rows(statistics[-1], many, invstd, 1e-3)
