"""``Library`` with C functions made of Python functions: no cuDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_ct import _lib, testing
from cudnn_ct._bindings import types
from cudnn_ct._bindings.enums import BackendAttributeName, BackendDescriptorType
from cudnn_ct._bindings.functions import FUNCTIONS
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
