"""``Library`` and ``ct.raw`` with C functions made of Python functions: no cuDNN."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_ct import _lib, testing
from cudnn_ct._bindings import enums, types
from cudnn_ct._bindings.enums import BackendAttributeName, BackendDescriptorType
from cudnn_ct._bindings.functions import FUNCTIONS
from cudnn_ct._handle import NativeHandle
from cudnn_ct._raw import raw
from cudnn_ct.errors import (
    AllocationError,
    BadParamError,
    CudnnError,
    LibraryNotFoundError,
    VersionMismatchError,
)


def fake(name: str, function: Callable[..., Any]) -> Any:
    """Make a C function of a Python one, with the prototype of its name."""
    prototype = FUNCTIONS[name]
    return ctypes.CFUNCTYPE(prototype.restype, *prototype.argtypes)(function)


def last_error(text: bytes) -> Callable[..., None]:
    def write(message: Any, size: int) -> None:
        ctypes.memmove(message, text + b"\0", min(len(text) + 1, size))

    return write


def library(version: int = 90100, **functions: Callable[..., Any]) -> _lib.Library:
    made = {
        "cudnnGetVersion": lambda: version,
        "cudnnGetLastErrorString": last_error(b"too big"),
        **functions,
    }
    return _lib.Library({name: fake(name, function) for name, function in made.items()}.get)


@pytest.fixture
def nothing_loaded() -> Iterator[None]:
    with testing.install(None):
        yield


def test_library_returns_success_and_raises_failures() -> None:
    answers = iter([0, 2000])
    lib = library(cudnnGraphVersionCheck=lambda: next(answers))
    assert lib.cudnnGraphVersionCheck() == 0
    with pytest.raises(BadParamError) as caught:
        lib.cudnnGraphVersionCheck()
    assert caught.value.status == 2000
    assert caught.value.function == "cudnnGraphVersionCheck"
    assert caught.value.detail == "too big"
    assert "9.1.0" in str(caught.value)


def test_library_reads_the_last_error_once_and_only_after_a_failure() -> None:
    fetched = []
    answers = iter([0, 0, 4000])
    lib = library(
        cudnnGraphVersionCheck=lambda: next(answers),
        cudnnGetLastErrorString=lambda message, size: fetched.append(size),
    )
    lib.cudnnGraphVersionCheck()
    lib.cudnnGraphVersionCheck()
    assert fetched == []
    with pytest.raises(CudnnError):
        lib.cudnnGraphVersionCheck()
    assert len(fetched) == 1


def test_library_checks_no_result_that_is_not_a_status() -> None:
    found = library(cudnnGetCudartVersion=lambda: 12090)
    assert (found.cuda_version, found.build) == (12090, "cuDNN 9.1.0 for CUDA 12")


def test_library_names_the_version_that_a_function_needs() -> None:
    lib = library(version=90100)
    name = next(name for name, prototype in FUNCTIONS.items() if prototype.since > 91900)
    with pytest.raises(VersionMismatchError, match=rf"^{name} needs cuDNN >= 9\.2\d\.\d, have 9\.1\.0$"):
        getattr(lib, name)(1, 2, 3)


def test_library_names_the_version_that_a_kind_of_descriptor_needs() -> None:
    """cuDNN fails with ALLOC_FAILED for a kind that it does not have."""
    lib = library(cudnnBackendCreateDescriptor=lambda kind, descriptor: 4003)
    descriptor = ctypes.byref(types.cudnnBackendDescriptor_t())
    for kind in (BackendDescriptorType.DEVICEPROP_DESCRIPTOR, 38):
        with pytest.raises(VersionMismatchError) as caught:
            lib.cudnnBackendCreateDescriptor(kind, descriptor)
        said = "a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR needs cuDNN >= 9.8.0, have 9.1.0"
        assert (str(caught.value), caught.value.status) == (said, 4003)
    for kind in (BackendDescriptorType.TENSOR_DESCRIPTOR, 9999):
        with pytest.raises(AllocationError):
            lib.cudnnBackendCreateDescriptor(kind, descriptor)
    recent = library(version=90800, cudnnBackendCreateDescriptor=lambda kind, descriptor: 4003)
    with pytest.raises(AllocationError):
        recent.cudnnBackendCreateDescriptor(BackendDescriptorType.DEVICEPROP_DESCRIPTOR, descriptor)


def test_library_names_the_version_that_an_attribute_needs() -> None:
    lib = library(cudnnBackendSetAttribute=lambda *_: 2000)
    with pytest.raises(
        VersionMismatchError, match=r"^the attribute CUDNN_ATTR_TENSOR_CONSTANT_VALUE needs cuDNN >= 9.22"
    ):
        lib.cudnnBackendSetAttribute(None, BackendAttributeName.TENSOR_CONSTANT_VALUE, 4, 1, None)
    with pytest.raises(BadParamError):
        lib.cudnnBackendSetAttribute(None, BackendAttributeName.TENSOR_DIMENSIONS, 4, 1, None)


def test_library_reports_a_missing_function() -> None:
    with pytest.raises(VersionMismatchError, match=r"^cudnnCreate is missing from this cuDNN, have 9\.1\.0$"):
        library().cudnnCreate(None)


def test_library_suggests_names_close_to_an_unknown_one() -> None:
    with pytest.raises(AttributeError, match="did you mean cudnnGetVersion"):
        library().cudnnGetVersoin  # noqa: B018
    with pytest.raises(AttributeError, match=r"no function 'zzz'$"):
        library().zzz  # noqa: B018


def test_library_has_every_function_as_an_attribute() -> None:
    assert set(FUNCTIONS) <= set(vars(library()))


def test_load_searches_again_after_a_failure(nothing_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lib, "find_cudnn", lambda: _lib.SearchResult(None, "", (("platform", "not here"),)))
    for _ in range(2):
        with pytest.raises(LibraryNotFoundError, match="platform: not here"):
            _lib.load()
    assert _lib.version(raises=False) == -1


# --- ct.raw rejects arguments that ctypes would truncate or pass on ----------------------------------------


calls: list[tuple[object, ...]] = []


def noting(name: str):
    """A C function that notes its arguments and succeeds."""

    def function(*args: object) -> int:
        calls.append(args)
        return 91900 if name == "cudnnGetVersion" else 0

    return fake(name, function)


@pytest.fixture(autouse=True)
def _fakes() -> Iterator[None]:
    calls.clear()
    with testing.install(noting):
        yield


def test_raw_lists_all_functions_and_creates_each_once() -> None:
    assert set(FUNCTIONS) < set(dir(raw))
    assert raw.cudnnGetVersion is raw.cudnnGetVersion
    assert raw.cudnnGetVersion() == 91900
    assert not hasattr(raw, "__wrapped__")
    with pytest.raises(AttributeError, match="no function 'cudnnGetVersoin'; did you mean cudnnGetVersion"):
        _ = raw.cudnnGetVersoin


def test_raw_has_enums_handles_and_structs() -> None:
    assert {"DataType", "cudnnTensorDescriptor_t", "cudnnDebug_t", "cudnnCallback_t", "handle"} < set(
        dir(raw)
    )
    assert "IntEnum" not in dir(raw)
    assert raw.DataType is enums.DataType
    descriptor = raw.cudnnTensorDescriptor_t()
    raw.cudnnCreateTensorDescriptor(ctypes.byref(descriptor))
    assert all(getattr(raw, name) is not None for name in dir(raw))


def test_raw_follows_the_library() -> None:
    first = raw.cudnnGetVersion
    with testing.install(noting):
        assert raw.cudnnGetVersion is not first


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raw_function_has_its_prototype(name: str) -> None:
    function = getattr(raw, name)
    assert list(inspect.signature(function).parameters) == list(FUNCTIONS[name].argnames)
    assert repr(function).startswith(f"{name}(")
    assert FUNCTIONS[name].header in function.__doc__


def test_raw_function_raises_when_cudnn_lacks_it() -> None:
    with testing.install(lambda name: None if name == "cudnnGraphVersionCheck" else noting(name)):
        for arguments in ((), (1, 2, 3)):
            with pytest.raises(
                VersionMismatchError, match="cudnnGraphVersionCheck is missing from this cuDNN"
            ):
                raw.cudnnGraphVersionCheck(*arguments)


def test_raw_passes_keyword_arguments_in_order() -> None:
    assert raw.cudnnSetStream(streamId=7, handle=None) == 0
    assert calls[-1][1] == 7
    assert repr(raw.cudnnSetStream) == "cudnnSetStream(handle: POINTER(cudnnContext), streamId: c_void_p)"


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("GetVersion", (1,), TypeError, r"cudnnGetVersion\(\): too many positional arguments"),
        ("SetStream", (None,), TypeError, r"cudnnSetStream\(.*\): missing a required argument: 'streamId'"),
        ("GetLastErrorString", (None, -1), OverflowError, "c_ulong holds 0 to"),
        ("SetTensorNdDescriptor", (None, 0, "4", None, None), TypeError, "nbDims must be c_int, not str"),
        (
            "SetTensorNdDescriptor",
            (None, 0, 2, [1, 2], None),
            TypeError,
            r"dimA must be POINTER\(c_int\), not list; \(c_int \* 2\)\(\*values\)",
        ),
        *(
            (
                "SetTensor4dDescriptor",
                (None, 0, 0, 1, 2, 3, value),
                OverflowError,
                f"w is {value}; c_int holds -",
            )
            for value in (2**31, -(2**31) - 1, 2**32 + 4, 2**70)
        ),
    ],
)
def test_raw_rejects_arguments_before_the_call(
    name: str, arguments: tuple[object, ...], error: type[Exception], message: str
) -> None:
    function = getattr(raw, f"cudnn{name}")
    calls.clear()
    with pytest.raises(error, match=message):
        function(*arguments)
    assert not calls


def test_raw_destroy_closes_an_owned_object_once() -> None:
    destroyed = []
    thing = NativeHandle(ctypes.c_void_p(5), destroyed.append)
    raw.cudnnDestroyTensorDescriptor(thing)
    assert thing.closed
    thing.close()
    assert len(destroyed) == 1
