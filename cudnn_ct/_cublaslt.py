"""Functions and constants of libcublasLt, which a full cuDNN loads, for products of matrices.

Names and numbers are those of NVIDIA's documentation of cuBLAS 12 and 13.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from functools import lru_cache
from typing import Any

from . import errors
from ._dlopen import Lookup, loaded_cublaslt
from ._handle import NativeHandle
from ._lib import Library

DTYPES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 14,
    "float8_e4m3": 28,
    "float8_e5m2": 29,
}  # cudaDataType
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
REDUCTION_COMPUTE_TYPE = 2  # cublasLtReductionScheme_t

# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
A_SCALE_POINTER, B_SCALE_POINTER, D_SCALE_POINTER, AMAX_POINTER, BIAS_DTYPE = 17, 18, 20, 21, 26
BATCH_COUNT, BATCH_STRIDE = 5, 6
MAX_WORKSPACE, REDUCTION_SCHEMES, MIN_ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # those of A, B, C and D


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: its words are valid for one version of the library."""

    _fields_ = (("words", c_uint64 * 8),)


class Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_CREATED = POINTER(c_void_p)
_SET = (c_void_p, c_int, c_void_p, c_size_t)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Create": (_CREATED,),
    "Destroy": (c_void_p,),
    "MatmulDescCreate": (_CREATED, c_int, c_int),
    "MatmulDescDestroy": (c_void_p,),
    "MatmulDescSetAttribute": _SET,
    "MatrixLayoutCreate": (_CREATED, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatrixLayoutSetAttribute": _SET,
    "MatmulPreferenceCreate": (_CREATED,),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulPreferenceSetAttribute": _SET,
    "MatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, POINTER(Result), POINTER(c_int)),
    "MatmulAlgoCheck": (*(c_void_p,) * 6, POINTER(Algorithm), POINTER(Result)),
    "Matmul": (*(c_void_p,) * 12, POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
}  # that return a cublasStatus_t

_ERRORS: dict[int, type[errors.CudnnError]] = {
    1: errors.NotInitializedError,
    3: errors.AllocationError,
    7: errors.BadParamError,
    8: errors.NotSupportedError,  # an architecture without such kernels
    13: errors.ExecutionFailedError,
    15: errors.NotSupportedError,
}


class CublasLt:
    """The functions of one libcublasLt by their names without the prefix; those that fail raise."""

    def __init__(self, lookup: Lookup) -> None:
        self._status_name = _bound(lookup, "GetStatusName", c_char_p, (c_int,))
        for name, arguments in _FUNCTIONS.items():
            function = _bound(lookup, name, c_int, arguments)
            function.errcheck = self._check
            setattr(self, name, function)
        number = int(_bound(lookup, "GetVersion", c_size_t, ())())
        self.version = f"{number // 10_000}.{number // 100 % 100}.{number % 100}"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"libcublasLt has no function {name!r} here")

    def create(self, kind: str, *arguments: int) -> NativeHandle:
        """Create an object, such as a "MatmulDesc"; it is destroyed with its last reference."""
        pointer = c_void_p()
        getattr(self, f"{kind}Create")(byref(pointer), *arguments)
        return NativeHandle(pointer, getattr(self, f"{kind}Destroy"))

    def set(self, kind: str, handle: NativeHandle, attribute: int, value: Any) -> None:
        """Set an attribute of an object to an instance of a C type."""
        getattr(self, f"{kind}SetAttribute")(handle, attribute, byref(value), sizeof(value))

    def _check(self, status: int, function: Any, args: tuple[Any, ...]) -> int:  # noqa: ARG002
        if status:
            raise self.error(status, function.__name__)
        return status

    def error(self, status: int, name: str) -> errors.CudnnError:
        """Return the exception for a status of a function."""
        text = self._status_name(status) or b"an unknown status"
        message = f"{name} returned {text.decode()} ({status}) [cuBLASLt {self.version}]"
        return _ERRORS.get(status, errors.InternalError)(message, function=name)


def _bound(lookup: Lookup, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    function: Any = lookup(f"cublasLt{name}")
    if function is None:
        raise errors.NotSupportedError(f"libcublasLt has no cublasLt{name}")
    function.__name__ = f"cublasLt{name}"
    function.restype, function.argtypes = result, arguments
    return function


@lru_cache(4)
def cublaslt_of(library: Library) -> CublasLt | None:
    """Return the libcublasLt that a cuDNN uses; None for a cuDNN without one."""
    lookup = lookup_of(library)
    return None if lookup is None else CublasLt(lookup)


def lookup_of(library: Library) -> Lookup | None:
    """Return the look-up of functions of the libcublasLt that a cuDNN uses; None without one."""
    if "libcublasLt" not in library.companions:
        return None
    library.cudnnCreate  # noqa: B018 - opens it
    return loaded_cublaslt(library.cuda_version // 1000)
