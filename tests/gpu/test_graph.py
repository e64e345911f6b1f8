"""Every engine of the graph family against the reference; the fused graph; what a run costs the host."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_ct.ops.conv.graph import candidates
from cudnn_ct.ops.conv.graph import plan as graph_plan
from cudnn_ct.shapes.conv import ROLES, ConvProblem, conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec

TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}
IMAGES: dict[str, Any] = {"x": (2, 16, 9, 9), "w": (8, 16, 3, 3), "padding": 1}
CASES: dict[str, dict[str, Any]] = {
    "float16": IMAGES,
    "float16 in NCHW": IMAGES | {"layout": "nchw"},
    "bfloat16, stride": IMAGES | {"dtype": "bfloat16", "stride": 2},
    "TF32": IMAGES | {"dtype": "float32"},
    "float32 strict": IMAGES | {"dtype": "float32", "precision": "float32", "layout": "nchw"},
    "float64": IMAGES | {"dtype": "float64", "layout": "nchw"},
    "one axis": {"x": (2, 16, 20), "w": (8, 16, 3), "padding": 1, "stride": 2},
    "three axes": {"x": (2, 8, 5, 6, 7), "w": (8, 8, 3, 3, 3), "padding": 1},
    "groups": {"x": (2, 32, 9, 9), "w": (32, 8, 3, 3), "padding": 1, "groups": 4},
    "depthwise": {"x": (2, 32, 9, 9), "w": (32, 1, 3, 3), "padding": 1, "groups": 32},
    "dilation": IMAGES | {"padding": 2, "dilation": 2},
    "asymmetric": IMAGES | {"padding": ((0, 1), (2, 1))},
    "flipped": IMAGES | {"mode": "convolution"},
    "odd channels": {"x": (2, 3, 9, 9), "w": (5, 3, 3, 3)},
    "one pixel": {"x": (2, 64, 1, 1), "w": (32, 64, 1, 1)},
}


def make(
    direction: str, x: Any, w: Any, dtype: str = "float16", layout: str = "nhwc", **k: Any
) -> ConvProblem:
    specs = TensorSpec.packed(x, dtype, layout), TensorSpec.packed(w, dtype, layout)
    return conv_problem("forward", *specs, **k)._replace(direction=direction)


def here() -> contexts.Context:
    return contexts.current(streams.resolve_stream(None))


def sparse(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.integers(-2, 3, shape) * (rng.random(shape) < 0.4)).astype(np.float64)


def on_device(values: np.ndarray, spec: TensorSpec) -> ct.DeviceArray:
    layout = spec.layouts[0] if spec.layouts else "nchw"
    return ct.asarray(values, spec.dtype, layout=layout)


def reference(problem: ConvProblem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    geometry = {name: getattr(problem, name) for name in ("padding", "stride", "dilation", "groups", "mode")}
    if problem.direction == "forward":
        return ct.reference.conv(first, second, **geometry)
    shape = getattr(problem, ROLES[problem.direction].operands[-1]).shape
    return getattr(ct.reference, f"conv_{problem.direction}")(first, second, shape, **geometry)


@pytest.mark.parametrize("direction", ROLES)
@pytest.mark.parametrize("name", CASES)
def test_each_engine_equals_reference(name: str, direction: str) -> None:
    problem, context = make(direction, **CASES[name]), here()
    one, two, out = (getattr(problem, role) for role in ROLES[direction].operands)
    values = sparse(one.shape, 1), sparse(two.shape, 2)
    expected = reference(problem, *values)
    inputs = [on_device(value, spec) for value, spec in zip(values, (one, two), strict=True)]
    ran, refused, wrong = [], [], []
    for row in candidates(problem, context):
        if row.rejected:
            continue
        result = on_device(np.full(out.shape, np.nan), out)
        try:
            plan = graph_plan(problem, row, context)
            plan.run(context, [*(array.pointer for array in inputs), result.pointer], 1.0, 0.0)
        except NotSupportedError as error:
            refused.append(f"{row.algorithm}: {str(error).splitlines()[0]}")
            continue
        got = result.numpy().astype(np.float64)
        error = np.abs(got - expected).max() / max(np.abs(expected).max(), 1)
        ran.append(row.algorithm)
        if not error <= TOLERANCE[problem.x.dtype]:  # also catches NaN
            wrong.append((row.algorithm, row.math, float(error)))
    print(
        f"\n{name} {direction}: {len(ran)} right, {len(wrong)} wrong, {len(refused)} refused: {refused[:3]}"
    )
    assert ran
    assert not wrong, wrong


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "activation", ["relu", "identity", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish"]
)
@pytest.mark.parametrize("factors", [None, (2.0, 0.5)], ids=str)
def test_fused_graph_equals_reference(activation: str, factors: Any, dtype: str) -> None:
    import math

    erf = np.vectorize(math.erf)
    activations = {
        "relu": lambda v: np.maximum(v, 0), "identity": lambda v: v,
        "clipped_relu": lambda v: np.clip(v, 0, 3),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)), "tanh": np.tanh,
        "elu": lambda v: np.where(v > 0, v, 3 * np.expm1(np.minimum(v, 0))),
        "gelu": lambda v: v * 0.5 * (1 + erf(v / 2**0.5)), "swish": lambda v: v / (1 + np.exp(-v)),
    }  # fmt: skip
    conv, context = make("forward", **(IMAGES | {"dtype": dtype})), here()
    bias = TensorSpec.packed((1, 8, 1, 1), dtype, "nhwc")
    extra = {} if factors is None else {"z": conv.y, "alpha1": factors[0], "alpha2": factors[1]}
    problem = FusedConv(conv, bias, activation=activation, coefficient=3.0, **extra)
    specs = [conv.x, conv.w, *([conv.y] if extra else []), bias]
    values = [sparse(spec.shape, seed) for seed, spec in enumerate(specs)]
    total = extra.get("alpha1", 1) * ct.reference.conv(values[0], values[1], padding=1) + values[-1]
    if extra:
        total = total + extra["alpha2"] * values[2]
    expected = activations[activation](total)
    inputs = [on_device(value, spec) for value, spec in zip(values, specs, strict=True)]
    rows = [row for row in candidates(problem, context) if not row.rejected]
    wrong, ran = [], 0
    for row in rows:
        result = on_device(np.full(conv.y.shape, np.nan), conv.y)
        try:
            plan = graph_plan(problem, row, context)
            plan.run(context, [*(array.pointer for array in inputs), result.pointer], 1.0, 0.0)
        except CudnnError as error:
            print(row.algorithm, type(error).__name__, str(error).splitlines()[0])
            continue
        ran += 1
        error = np.abs(result.numpy().astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1)
        if not error <= TOLERANCE[dtype]:
            wrong.append((row.algorithm, float(error)))
    print(f"\n{activation} {factors} {dtype}: {len(rows)} offered, {ran} ran")
    assert not wrong, wrong
    if not ran:
        pytest.skip("no engine here")


def test_host_time_of_a_run() -> None:
    problem, context = make("forward", (1, 8, 4, 4), (8, 8, 1, 1)), here()
    plan = graph_plan(problem, candidates(problem, context)[0], context)
    arrays = [on_device(sparse(s.shape, 0), s) for s in (problem.x, problem.w, problem.y)]
    pointers = tuple(array.pointer for array in arrays)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            plan.run(context, pointers, 1.0, 0.0)
        best = min(best, (time.perf_counter() - start) / 500 * 1e6)
        ct.synchronize()
    print(f"\n{best:.2f} us a run")
