"""First results compared at run time: engines that are known to be wrong are found without their rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.certify import certificates
from cudnn_ct.errors import CudnnWarning
from cudnn_ct.graph import native
from cudnn_doctor.read.versions import table


@pytest.fixture
def no_facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the engines of graphs that are known to be wrong, for harmless shapes."""
    monkeypatch.setattr(native, "check_layouts", lambda graph, target: None)
    with testing.without_facts(*(row["name"] for row in table() if row["kind"] == "engine")):
        yield


Case = tuple[ct.BuiltGraph[Any], list[np.ndarray]]


def numbers(*shape: int, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng().normal(size=shape).astype(dtype)


def gradient_of_filter() -> Case:
    g = ct.Graph()
    dy, x = (g.input((2, 4, 6, 4), "float16", layout="nhwc") for _ in range(2))
    w = g.conv_backward_filter(dy, x, (4, 4, 3, 3), padding=1)
    return g.build(g.relu(g.abs(w))), [numbers(2, 4, 6, 4), numbers(2, 4, 6, 4)]


def product_of_two_dtypes() -> Case:
    g = ct.Graph()
    x = g.input((5, 17), "float16")
    return g.build(g.relu(x) @ g.input((17, 8), "float32")), [numbers(5, 17), numbers(17, 8, dtype="float32")]


def selection_after_gradient_of_data() -> Case:
    g = ct.Graph()
    dy = g.input((1, 16, 7, 12), "float32", layout="nhwc")
    w = g.input((16, 32, 1, 1), "float32", layout="nhwc")
    a, b = (g.input((1, 32, 7, 12), "float32", layout="nhwc") for _ in range(2))
    v = g.conv_backward_data(dy, w, (1, 32, 7, 12))
    shapes = [(1, 16, 7, 12), (16, 32, 1, 1), (1, 32, 7, 12), (1, 32, 7, 12)]
    return g.build(g.select(a > b, v, a)), [numbers(*shape, dtype="float32") for shape in shapes]


@pytest.mark.parametrize(
    "make", [gradient_of_filter, product_of_two_dtypes, selection_after_gradient_of_data]
)
def test_result_is_right_without_the_row_of_a_wrong_engine(make: Callable[[], Case], no_facts: None) -> None:
    f, arrays = make()
    specs = f.inputs.values()
    layouts = [spec.layout if len(spec.shape) > 2 else None for spec in specs]
    operands = [ct.asarray(array, layout=layout) for array, layout in zip(arrays, layouts, strict=True)]
    expected = ct.reference.graph(f.problem, *arrays).astype(np.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = f(*operands).numpy()
    error = np.abs(y - expected).max() / np.abs(expected).max()
    assert error < 1e-2, f.describe()
    if not caught:  # another cuDNN, or another engine was first
        assert "certified: agrees with" in f.describe()
    assert all(one.category is CudnnWarning and "wrong result" in str(one.message) for one in caught)


def test_first_result_agrees_and_later_calls_are_not_compared() -> None:
    g = ct.Graph()
    x, w = g.input((64, 96), "float16"), g.input((96, 128), "float16")
    f = g.build(g.relu(x @ w))
    a, b = numbers(64, 96), numbers(96, 128)
    for _ in range(3):
        y = f(ct.asarray(a), ct.asarray(b)).numpy()
        np.testing.assert_allclose(y, np.maximum(a.astype(np.float64) @ b, 0), atol=0.1)
    assert "certified: agrees with" in f.describe()
    assert certificates.wrong_engines() == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 262_144), 1), ((4000, 1000), 1), ((1024, 4096), 1), ((4, 1000, 1000), (0, 2)), ((4000, 1000), 0)],
)
def test_deterministic_sums_have_the_same_bits(shape: tuple[int, ...], axis: Any, dtype: str) -> None:
    x = ct.asarray(np.random.default_rng().normal(size=shape).astype(np.float32), dtype)
    for op in ("add", "norm2"):
        found = {ct.reduce(x, op=op, axis=axis, deterministic=True).numpy().tobytes() for _ in range(40)}
        assert len(found) == 1, op


def test_deterministic_graph_rejects_sums_whose_bits_vary() -> None:
    g = ct.Graph()
    a, b = g.input((256, 64), "float16"), g.input((64, 4096), "float16")
    total = g.reduce(a @ b, "add", -1)
    x, w = ct.asarray(numbers(256, 64)), ct.asarray(numbers(64, 4096))
    try:
        f = g.build(total, deterministic=True)
        found = {f(x, w).numpy().tobytes() for _ in range(40)}
    except ct.errors.NotSupportedError as error:
        assert "not deterministic" in str(error)
    else:
        assert len(found) == 1
