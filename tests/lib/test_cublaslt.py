"""The real libcublasLt, without a GPU: its functions, descriptors and attributes."""

from __future__ import annotations

from ctypes import c_int64
from typing import Any

import pytest

from cudnn_ct import _lib
from cudnn_ct._cublaslt import CublasLt, cublaslt_of
from cudnn_ct.errors import BadParamError, NotInitializedError, NotSupportedError
from cudnn_ct.ops.matmul.cublaslt import _Product, why_not
from cudnn_ct.shapes.matmul import matmul_problem, scaled_matmul_problem
from cudnn_ct.shapes.specs import TensorSpec

packed = TensorSpec.packed


@pytest.fixture
def lt(cudnn: int) -> CublasLt:
    library = cublaslt_of(_lib.load())
    if library is None:
        pytest.skip("this cuDNN uses no libcublasLt")
    return library


def test_library_has_the_version_and_the_names_of_errors(lt: CublasLt) -> None:
    assert lt.version.split(".")[0] in ("12", "13")
    assert "returned CUBLAS_STATUS_NOT_SUPPORTED (15)" in str(lt.error(15, "cublasLtMatmul"))
    assert isinstance(lt.error(15, "cublasLtMatmul"), NotSupportedError)


def half(dtype: str = "float16", **more: TensorSpec) -> Any:
    specs = {"a": packed((3, 4, 8), dtype), "b": packed((3, 8, 5), dtype), **more}
    return matmul_problem(specs, (None,), "gelu_tanh" if more else None, 0.5, None, None)


def eights() -> Any:
    b = TensorSpec((1, 32, 16), (512, 1, 32), "float8_e4m3")
    scales = {name: packed((1,), "float32") for name in ("descale_a", "descale_b", "scale")}
    specs = {"a": packed((1, 16, 32), "float8_e5m2"), "b": b, **scales}
    made = scaled_matmul_problem(specs, (None, None), "relu", "float8_e4m3")
    return made._replace(bias=packed((1, 1, 16), "bfloat16"), amax=packed((1,), "float32"))


PROBLEMS = {
    "half precision": half(),
    "epilogue and residual": half(residual=packed((3, 4, 5), "float16")),
    "float32": half("float32"),
    "float64": half("float64"),
    "float8": eights(),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_library_accepts_all_attributes_of_a_product(lt: CublasLt, name: str) -> None:
    problem = PROBLEMS[name]
    assert why_not(problem) == ""
    made = _Product(lt, problem)
    made.set_pointers(dict.fromkeys(made.pointers, 256))
    try:
        handle = lt.create("")
    except NotInitializedError as error:  # without a GPU
        assert str(error).startswith("cublasLtCreate returned CUBLAS_STATUS_NOT_INITIALIZED (1)")
    else:
        made.algorithms(handle, 4, 1 << 20)


def test_library_rejects_an_attribute_of_another_size(lt: CublasLt) -> None:
    with pytest.raises(BadParamError, match="CUBLAS_STATUS_INVALID_VALUE"):
        lt.set("MatmulDesc", lt.create("MatmulDesc", 68, 0), 7, c_int64(4))
