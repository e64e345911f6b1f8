"""sigpy's convolutions of arrays of CuPy, with `cudnn_ct.cupy` in place of CuPy's lost module.

sigpy's functions of arrays of NumPy are what they are compared with.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import unittest
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library


def stand_in_for_numba() -> ModuleType:
    """Return a module with the decorators of numba, which compile nothing: sigpy's convolutions use none."""
    module = ModuleType("numba")

    def compiled(*arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else lambda function: function

    for name in ("jit", "njit", "vectorize"):
        setattr(module, name, compiled)
    module.prange = range  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="module")
def door() -> Iterator[Any]:
    """sigpy with the names of ``cupy.cudnn``, which it looks up when it is imported."""
    cupy = library("cupy")
    library("cupyx")
    from cudnn_ct import cupy as names

    try:
        importlib.import_module("numba")
    except ImportError:
        sys.modules["numba"] = stand_in_for_numba()
    try:
        names.install()
    except RuntimeError as error:
        pytest.skip(str(error))
    sigpy = pytest.importorskip("sigpy")
    before = {one: getattr(ct.config, one) for one in ("allow_tf32", "autotune_max_engines")}
    ct.config.allow_tf32 = False
    ct.config.autotune_max_engines = 0  # sigpy tunes each geometry, and engines take seconds
    yield SimpleNamespace(cupy=cupy, sigpy=sigpy, names=names)
    for one, value in before.items():
        setattr(ct.config, one, value)


GEOMETRIES = [  # the image, the filter, the mode, the strides
    ((1,), (1,), "full", None),
    ((5,), (3,), "full", None),
    ((5,), (3,), "valid", None),
    ((9,), (4,), "full", (2,)),
    ((9,), (4,), "valid", (3,)),
    ((1, 3), (1, 3), "full", None),
    ((3, 1), (1, 3), "full", None),
    ((6, 5), (3, 2), "full", None),
    ((6, 5), (3, 2), "valid", None),
    ((6, 5), (3, 2), "full", (2, 1)),
    ((7, 8), (4, 3), "valid", (1, 2)),
    ((8, 8), (8, 8), "valid", None),
    ((12, 10), (5, 5), "full", (3, 3)),
    ((2, 3, 4), (1, 2, 3), "full", None),
    ((4, 5, 6), (2, 3, 2), "valid", None),
    ((4, 5, 6), (2, 3, 2), "full", (1, 2, 2)),
    ((4, 5, 6), (4, 1, 2), "valid", (1, 2, 1)),
    ((5, 5, 5), (5, 5, 5), "valid", None),
]
KINDS = [("float32", None), ("float64", (3, 2)), ("complex64", (2, 3)), ("complex128", None)]


def draw(dtype: str, *shape: int) -> np.ndarray:
    """Return integers as numbers of a dtype, so that sums are exact."""
    rng = np.random.default_rng(len(shape))
    values = rng.integers(-4, 5, shape).astype("complex128" if dtype.startswith("complex") else "float64")
    if dtype.startswith("complex"):
        values += 1j * rng.integers(-4, 5, shape)
    return values.astype(dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolution_and_its_adjoints_equal_those_of_numpy(geometry: Any, kind: Any, door: Any) -> None:
    image, window, mode, strides = geometry
    dtype, channels = kind
    outputs, inputs = channels or (1, 1)
    data = draw(dtype, *((2, inputs, *image) if channels else (2, *image)))
    filters = draw(dtype, *((outputs, inputs, *window) if channels else window))
    manner = {"mode": mode, "strides": strides, "multi_channel": channels is not None}
    sigpy, cupy = door.sigpy, door.cupy
    expected = sigpy.convolve(data, filters, **manner)
    near = {"rtol": 1e-4, "atol": 1e-3}  # scipy may compute by FFT
    found = sigpy.convolve(cupy.asarray(data), cupy.asarray(filters), **manner)
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.get(), expected, **near)
    y = draw(dtype, *expected.shape)
    expected = sigpy.convolve_data_adjoint(y, filters, data.shape, **manner)
    found = sigpy.convolve_data_adjoint(cupy.asarray(y), cupy.asarray(filters), data.shape, **manner)
    np.testing.assert_allclose(found.get(), expected, **near)
    expected = sigpy.convolve_filter_adjoint(y, data, filters.shape, **manner)
    found = sigpy.convolve_filter_adjoint(cupy.asarray(y), cupy.asarray(data), filters.shape, **manner)
    np.testing.assert_allclose(found.get(), expected, **near)


def test_own_tests_of_sigpy_pass(door: Any) -> None:
    """Its wheel has none: ``SIGPY_TESTS`` is the path of ``tests/test_conv.py`` of its sources."""
    if not (path := os.environ.get("SIGPY_TESTS")):
        pytest.skip("SIGPY_TESTS is not set")
    spec = importlib.util.spec_from_file_location("sigpy_test_conv", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    print(f"{result.testsRun} tests of sigpy {door.sigpy.__version__} ran")
    assert result.testsRun
    assert [text for _, text in (*result.errors, *result.failures)] == []


def test_operator_and_its_adjoint_agree(door: Any) -> None:
    """<A x, y> = <x, A* y> for sigpy's operator of convolutions."""
    sigpy, cupy = door.sigpy, door.cupy
    operator = sigpy.linop.ConvolveData(
        (2, 3, 8, 7), cupy.asarray(draw("complex64", 4, 3, 3, 2)), multi_channel=True
    )
    x, y = (cupy.asarray(draw("complex64", *shape)) for shape in (operator.ishape, operator.oshape))
    assert abs(complex(cupy.vdot(operator(x), y)) - complex(cupy.vdot(x, operator.H(y)))) < 1
    assert sigpy.config.cudnn_enabled
