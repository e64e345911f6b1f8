"""Calls with many lengths in random order, whose graphs are dynamic, against NumPy in float64.

Results begin as NaN. Products are of small integers, which all dtypes here hold, so they are exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.mixed import in_threads

__all__ = [
    "_dynamic",
    "test_built_graphs_equal_reference_at_many_lengths",
    "test_calls_of_two_streams_and_threads_equal_reference_at_many_lengths",
    "test_matmul_backward_equals_reference_at_many_lengths",
    "test_matmul_equals_reference_at_many_lengths",
]

LENGTHS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 63, 64, 65, 100, 127, 129, 200, 256, 333, 512, 1000, 1023)


@pytest.fixture(autouse=True)
def _dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct.config, "dynamic_shapes", True)


def lengths(seed: int, first: int = 64) -> list[int]:
    """Return the length that kernels are compiled for, the others in random order, and the first again."""
    rest = random.Random(seed).sample(LENGTHS, len(LENGTHS))
    return [first, *rest, first]


def integers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((*shape, seed)).integers(-2, 3, shape).astype("float64")


def nan(shape: Sequence[int], dtype: str) -> ct.DeviceArray:
    return ct.full(tuple(shape), float("nan"), dtype)


def is_dynamic() -> bool:
    plan = ct.last_plan()
    return plan is not None and plan.candidate is not None and plan.candidate.dynamic


def check_product(
    rows: int,
    inner: int,
    columns: int,
    dtype: str = "float16",
    *,
    batch: tuple[int, ...] = (),
    transposed: bool = False,
    epilogue: bool = True,
    repeat: int = 1,
) -> None:
    """Multiply integers ``repeat`` times into the same memory, which is NaN before each run."""
    a, b, bias = integers(*batch, rows, inner), integers(inner, columns, seed=1), integers(columns, seed=2)
    on_device = ct.asarray(a.swapaxes(-1, -2) if transposed else a, dtype)
    on_device = on_device.transpose(*range(len(batch)), -1, -2) if transposed else on_device
    w, c = ct.asarray(b, dtype), ct.asarray(bias, dtype)
    expected = a @ b
    more: dict[str, Any] = {}
    if epilogue:
        expected, more = np.maximum(expected + bias, 0), {"bias": c, "activation": "relu"}
    out = nan(expected.shape, dtype)
    for _ in range(repeat):
        ct.fill(out, float("nan"))
        ct.matmul(on_device, w, out=out, **more)
        np.testing.assert_array_equal(out.numpy().astype("float64"), expected, f"{rows} {inner} {columns}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("inner", "columns", "case"),
    [
        (64, 40, {}),
        (64, 40, {"epilogue": False}),
        (32, 24, {"batch": (3,)}),
        (32, 24, {"transposed": True}),
        (20, 12, {}),  # not multiples of 8
        (7, 5, {}),
    ],
)
def test_matmul_equals_reference_at_many_lengths(
    inner: int, columns: int, case: dict[str, Any], dtype: str
) -> None:
    dynamic = 0
    few = 6 if case.get("transposed") else None  # the length is contiguous, so that each is compiled
    for number, rows in enumerate(lengths(inner)[:few]):
        check_product(rows, inner, columns, dtype, **case, repeat=1 + number % 3)
        dynamic += is_dynamic()
    assert dynamic or inner % 8 or case.get("transposed")


def test_matmul_backward_equals_reference_at_many_lengths() -> None:
    """The summed axis of one product is the length."""
    b = integers(32, 24)
    for rows in lengths(3):
        a, dy = integers(rows, 32), integers(rows, 24, seed=1)
        gradients = ct.matmul_backward(*(ct.asarray(one, "float32") for one in (dy, a, b)))
        np.testing.assert_array_equal(gradients.da.numpy(), dy @ b.T)
        np.testing.assert_array_equal(gradients.db.numpy(), a.T @ dy)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_built_graphs_equal_reference_at_many_lengths(dtype: str) -> None:
    dynamic = 0
    for number, rows in enumerate(lengths(9)):
        if rows == 1:  # cuDNN has no engine for a residual of one row, which is also column-major
            continue
        g = ct.Graph()
        x, w = g.input((rows, 64), dtype), g.input((64, 48), dtype)
        bias, residual = g.input((48,), dtype), g.input((rows, 48), dtype)
        built: Any = g.build(g.relu(x @ w + bias) + residual, dynamic_shapes=True)
        values = [integers(*spec.shape, seed=seed) for seed, spec in enumerate(built.inputs.values())]
        a, b, c, d = values
        arrays, out = [ct.asarray(one, dtype) for one in values], nan((rows, 48), dtype)
        for _ in range(1 + number % 3):
            ct.fill(out, float("nan"))
            built(*arrays, out=out)
            np.testing.assert_array_equal(out.numpy().astype("float64"), np.maximum(a @ b + c, 0) + d)
        dynamic += built.candidate.dynamic
    assert dynamic


def test_calls_of_two_streams_and_threads_equal_reference_at_many_lengths(two_streams: Sequence[Any]) -> None:
    def work(number: int) -> None:
        order: Iterator[int] = iter(lengths(number, 100)[:14])
        for place, rows in enumerate(order):
            with ct.use(stream=two_streams[(number + place) % 2]):
                check_product(rows, 64, 40, repeat=1 + place % 3)

    work(0)
    in_threads(3, work)
