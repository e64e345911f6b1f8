"""Convolution of float8 on a GPU, against the reference bit for bit, and PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from tests.float8_conv_cases import ALL, CASES, ODD, SCALES, WINDOW, Case, check, operands
from tests.layers import TOLERANCE

from .conftest import place

torch = pytest.importorskip("torch")
functional = torch.nn.functional

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
SUMS = 2.0**-11  # error of sums relative to the sum of magnitudes: tensor cores keep some 13 bits
pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")


@pytest.fixture(autouse=True)
def _has_engines() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("convolutions of float8 need an Ada or Hopper GPU")


def wide(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array.astype(np.float64))


def convolved(case: Case, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Return the convolution of the dequantised operands with bias and activation, in float64."""
    factors = {name: SCALES[f"descale_{name}"] if f"descale_{name}" in case.scales else 1.0 for name in "xw"}
    x, w = (wide(arrays[name]) * factor for name, factor in factors.items())
    geometry = dict(case.geometry)
    padding = geometry.pop("padding", 0)
    if isinstance(padding, tuple):
        sides = [side for pair in reversed(padding) for side in pair]  # of the last axis first
        x, padding = functional.pad(x, sides), 0
    v = CONVOLUTIONS[x.ndim - 2](x, w, padding=padding, **geometry)
    if case.bias:
        v = v + wide(arrays["bias"]).reshape(1, -1, *[1] * (v.ndim - 2))
    return functional.relu(v) if case.activation == "relu" else v


@pytest.mark.parametrize("name", CASES)
def test_scaled_conv_is_exact_for_small_integers(name: str) -> None:
    case = CASES[name]
    arrays, found = check(case, place)
    v = convolved(case, arrays)
    wanted = (v * SCALES["scale"] if "scale" in case.scales else v).numpy()
    rounded = wanted.astype(as_dtype(case.y).numpy).astype(np.float64)
    np.testing.assert_array_equal(found.y.numpy().astype(np.float64), rounded)
    assert not case.amax or float(found.amax.numpy()[0]) == float(v.abs().max())


RANDOM = {
    "bfloat16": Case((2, 96, 19, 21), (64, 96, 3, 3), "e4m3 e4m3 bfloat16", True, geometry={"padding": 1}),
    "float32": Case((4, 64, 28, 28), (128, 64, 3, 3), "e4m3 e5m2 float32", True, ALL, geometry={"stride": 2}),
}


@pytest.mark.parametrize("name", RANDOM)
def test_scaled_conv_equals_pytorch(name: str) -> None:
    case = RANDOM[name]
    arrays = drawn(case)
    given = {
        key: ct.asarray(array, layout="nhwc" if array.ndim > 1 else None) for key, array in arrays.items()
    }
    found = ct.scaled_conv(**given, amax=True, out_dtype=case.y, **case.geometry)
    near(case, arrays, found)


def test_every_engine_of_a_convolution_of_float8_equals_pytorch() -> None:
    from cudnn_ct import context
    from cudnn_ct.ops.conv import scaled

    case = Case(ODD, WINDOW, "e4m3 e4m3 float32", True, ALL, geometry={"padding": 1})
    arrays = drawn(case)
    given = {
        key: ct.asarray(array, layout="nhwc" if array.ndim > 1 else None) for key, array in arrays.items()
    }
    call: dict[str, Any] = {"amax": True, **case.geometry}
    ct.scaled_conv(**given, out_dtype=case.y, **call)
    description = ct.last_plan()
    assert description is not None
    assert description.candidate is not None
    problem, ctx = description.candidate.problem, context.of_device(0)
    rows = [row for find in scaled.FLOAT8_SOURCE.heuristics(problem) for row in find(ctx)]
    names = [*dict.fromkeys(row.algorithm for row in rows if not row.rejected)]
    assert names
    for algo in names[:5]:  # each compiles a kernel
        y, amax = ct.full((2, 48, 9, 11), float("nan"), layout="nhwc"), ct.full((1,), float("nan"))
        near(case, arrays, ct.scaled_conv(**given, algo=algo, out=(y, amax), **call), algo)


def test_scaled_conv_copies_any_float8_number() -> None:
    """Operands with channels first are copied; a convolution with the identity returns them."""
    numbers = np.arange(256, dtype=np.uint8).view(as_dtype("float8_e4m3").numpy)
    numbers = numbers[np.isfinite(numbers.astype(np.float64))]
    x = np.resize(numbers, (2, 16, 8, 9))
    w = np.eye(16, dtype=np.float64).reshape(16, 16, 1, 1).astype(x.dtype)
    y, _ = ct.scaled_conv(ct.asarray(x), ct.asarray(w), out_dtype="float32")
    np.testing.assert_array_equal(y.numpy(), x.astype(np.float32))


def drawn(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Return the operands of a case with normal numbers in place of integers."""
    rng, arrays = np.random.default_rng(1), operands(case)
    fresh = {name: rng.standard_normal(arrays[name].shape).astype(arrays[name].dtype) for name in "xw"}
    return arrays | fresh


def near(case: Case, arrays: dict[str, np.ndarray[Any, Any]], found: Any, name: str = "") -> None:
    """Compare results with float64, within the error of the sums of float8 and one rounding."""
    v = convolved(case, arrays)
    terms = convolved(case, arrays | {name: np.abs(arrays[name].astype(np.float64)) for name in "xw"})
    scale = SCALES["scale"] if "scale" in case.scales else 1.0
    y, bound = torch.from_numpy(found.y.numpy().astype(np.float64)), SUMS * terms
    allowed = scale * (bound + TOLERANCE[case.y] * v.abs())
    assert bool(((y - scale * v).abs() <= allowed).all()), name
    assert abs(float(found.amax.numpy()[0]) - float(v.abs().max())) <= float(bound.max()), name
