"""``ct.raw``: arguments that ctypes would truncate or pass on are rejected before C."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterator

import pytest

from cudnn_ct import testing
from cudnn_ct._bindings import enums
from cudnn_ct._bindings.functions import FUNCTIONS
from cudnn_ct._handle import NativeHandle
from cudnn_ct._raw import raw
from cudnn_ct.errors import VersionMismatchError

calls: list[tuple[object, ...]] = []


def fake(name: str):
    """A C function that notes its arguments and succeeds."""
    prototype = FUNCTIONS[name]

    def function(*args: object) -> int:
        calls.append(args)
        return 91900 if name == "cudnnGetVersion" else 0

    return ctypes.CFUNCTYPE(prototype.restype, *prototype.argtypes)(function)


@pytest.fixture(autouse=True)
def _fakes() -> Iterator[None]:
    calls.clear()
    with testing.install(fake):
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
    with testing.install(fake):
        assert raw.cudnnGetVersion is not first


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raw_function_has_its_prototype(name: str) -> None:
    function = getattr(raw, name)
    assert list(inspect.signature(function).parameters) == list(FUNCTIONS[name].argnames)
    assert repr(function).startswith(f"{name}(")
    assert FUNCTIONS[name].header in function.__doc__


def test_raw_function_raises_when_cudnn_lacks_it() -> None:
    with testing.install(lambda name: None if name == "cudnnGraphVersionCheck" else fake(name)):
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
