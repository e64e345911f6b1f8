"""Graphs next to those that ct.Graph rejects, because cuDNN computes the latter wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops.graph.built import source_of

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}
SHAPE = (2, 16, 9, 12)


def check(build: Callable[[ct.Graph], Any], dtype: str) -> None:
    """Compare each engine of a graph of one input x, images with channels last, with the reference."""
    g = ct.Graph()
    y = build(g)
    outputs = y if isinstance(y, tuple) else (y,)
    problem = g.define(*outputs)
    x = ct.asarray(np.random.default_rng(0).standard_normal(SHAPE).astype("f"), layout="nhwc").astype(dtype)
    context = contexts.current(streams.resolve_stream(None))
    stages = source_of(problem).heuristics(problem)
    rows = [row for stage in stages for row in stage(context) if not row.rejected]
    assert rows
    expected = ct.reference.graph(problem, x.numpy())
    for name in dict.fromkeys(row.algorithm for row in rows):
        f = g.build(*outputs, algo=name, strict=True)
        outs = tuple(ct.full(spec.shape, 77, spec.dtype, layout="nhwc") for spec in f.outputs.values())
        f(x, out=outs)
        for out, want in zip(outs, expected if isinstance(y, tuple) else (expected,), strict=True):
            wanted = np.asarray(want, np.float64)
            error = np.abs(out.numpy().astype(np.float64) - wanted).max()
            bound = TOLERANCE[out.dtype.name] * np.abs(wanted).max() if out.dtype.name in TOLERANCE else 0
            assert error <= bound, name


@pytest.mark.parametrize("padding", [0, 1, ((1, 1), (0, 1))], ids=str)
@pytest.mark.parametrize("mode", ["maxpool", "avgpool", "avgpool_exclude_padding"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_engine_of_pooling_equals_the_reference(mode: Any, dtype: str, padding: Any) -> None:
    def pooled(g: ct.Graph) -> ct.GraphTensor:
        return g.resample(g.input(SHAPE, dtype, layout="nhwc"), mode, 3, padding=padding)

    check(pooled, dtype)
    check(lambda g: g.abs(pooled(g)), dtype)


@pytest.mark.parametrize("padding", [0, 1])
def test_each_engine_of_pooling_with_indices_equals_the_reference(padding: int) -> None:
    check(lambda g: g.resample_with_indices(g.input(SHAPE, layout="nhwc"), 3, padding=padding), "float32")


@pytest.mark.parametrize("shape", [(33, 64), (5, 3)], ids=str)
@pytest.mark.parametrize("stored", [None, "int8"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int32"])
def test_conditions_equal_the_reference(dtype: str, stored: str | None, shape: tuple[int, int]) -> None:
    builds: list[Callable[[ct.Graph, Any, Any], Any]] = [
        lambda g, x, b: x > b,
        lambda g, x, b: g.logical_not(x > b),
        lambda g, x, b: g.logical_and(x > b, x == 2.0),
        lambda g, x, b: g.logical_or(g.logical_and(x, b), x == 1.0),
        lambda g, x, b: g.select(g.logical_or(x > b, b == 3.0), 2.0, 1.0),
    ]
    random = np.random.default_rng(0)
    arrays = [ct.asarray(random.integers(0, 4, shape).astype("f")).astype(dtype) for _ in range(2)]
    for number, build in enumerate(builds):
        g = ct.Graph()
        y = build(g, *(g.input(shape, dtype) for _ in range(2))).output(dtype=stored)
        f = g.build(y)
        expected = ct.reference.graph(f, *(array.numpy() for array in arrays))
        found = f(*arrays, out=ct.full(shape, 77, next(iter(f.outputs.values())).dtype)).numpy()
        np.testing.assert_array_equal(
            found.astype("f"), np.asarray(expected).astype("f"), err_msg=str(number)
        )


@pytest.mark.parametrize("stored", [None, "int8", "int32", "float16"])
def test_comparison_of_int32_is_computed_in_float32(stored: str | None) -> None:
    random = np.random.default_rng(0)
    arrays = [(2**24 + random.integers(0, 4, (33, 64))).astype("int32") for _ in range(2)]
    g = ct.Graph()
    x, b = (g.input((33, 64), "int32") for _ in range(2))
    f = g.build((x < b).output(dtype=stored))
    expected = ct.reference.graph(f, *arrays)
    assert not np.array_equal(expected, arrays[0] < arrays[1])
    np.testing.assert_array_equal(f(*map(ct.asarray, arrays)).numpy(), expected)


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm", "batch_norm"])
def test_statistics_of_norms_are_right_in_half_precision(mode: Any, stored: str) -> None:
    """Sums of gen_stats are rejected in half precision; these statistics are not."""
    rows = mode != "batch_norm"
    shape, axes = ((24, 64), (1,)) if rows else ((4, 16, 6, 5), (0, 2, 3))
    weight = (64,) if rows else (1, 16, 1, 1)
    x = np.random.default_rng().normal(1, 2, shape).astype("float16")
    one, zero = np.ones(weight, "f"), np.zeros(weight, "f")
    g = ct.Graph()
    layout = None if rows else "nhwc"
    made = g.norm(
        g.input(shape, "float16", layout=layout),  # type: ignore[arg-type]
        g.input(weight),
        None if mode == "rms_norm" else g.input(weight),
        mode=mode,
    )
    statistics = [one.output(dtype=stored) for one in (made.mean, made.inv_variance) if one is not None]
    with g.build(made.y, *statistics) as f:
        given = [ct.asarray(x, layout=layout), ct.asarray(one)]  # type: ignore[arg-type]
        found = f(*given, *([] if mode == "rms_norm" else [ct.asarray(zero)]))
    wide = x.astype(np.float64)
    mean = 0 if mode == "rms_norm" else wide.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
    wanted = [(wide - mean) * inverse, *([] if mode == "rms_norm" else [mean]), inverse]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=2e-2, atol=2e-2)
