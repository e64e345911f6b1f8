"""Dtypes, errors, settings and the owner of native pointers."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import errors
from cudnn_ct._bindings.enums import DataType, Status
from cudnn_ct._config import SETTINGS, Config
from cudnn_ct._handle import NativeHandle
from cudnn_ct.dtypes import DTYPES, as_dtype

# --- dtypes ------------------------------------------------------------------------------------------------

CUDNN_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float8_e4m3": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOLEAN",
}


@pytest.mark.parametrize("name", CUDNN_NAMES)
def test_dtype_row(name: str) -> None:
    row = DTYPES[name]
    assert row.code == DataType[CUDNN_NAMES[name]]
    assert row.numpy.itemsize == row.itemsize
    assert as_dtype(name) is as_dtype(row.numpy) is as_dtype(row.numpy.type) is as_dtype(row) is row


def test_every_dtype_is_tested() -> None:
    assert set(DTYPES) == set(CUDNN_NAMES)


def test_other_names_and_no_names() -> None:
    assert as_dtype("half") is as_dtype(np.float16)
    assert as_dtype(float) is DTYPES["float64"]
    assert as_dtype(ml_dtypes.float8_e4m3fn).name == "float8_e4m3"
    assert as_dtype("f4") is as_dtype("<f4") is DTYPES["float32"]
    assert as_dtype("float") is as_dtype("double") is DTYPES["float64"]  # as in NumPy
    for bad in (None, "complex64", np.complex128, "U3", object, "float12", 3.5, None.__class__):
        with pytest.raises(TypeError, match=r"cuDNN has no dtype .*; it has float32, float64, float16"):
            as_dtype(bad)


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [s for s in Status if s])
def test_every_status_has_its_class(status: Status) -> None:
    error = errors.error_from_status(int(status), "cudnnSomething", "what it said", 91900)
    families = {
        1: errors.NotInitializedError,
        2: errors.BadParamError,
        3: errors.NotSupportedError,
        4: errors.InternalError,
        5: errors.ExecutionFailedError,
    }
    loading = status in (1008, 3009)
    assert isinstance(error, errors.LibraryLoadError if loading else families[int(status) // 1000])
    assert f"cudnnSomething returned CUDNN_STATUS_{status.name} ({int(status)})" in str(error)
    assert "what it said" in str(error)
    assert "[cuDNN 9.19.0]" in str(error)
    assert (error.status, error.function, error.detail) == (status, "cudnnSomething", "what it said")


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (Status.NOT_INITIALIZED, "nvidia-smi"),
        (Status.SUBLIBRARY_VERSION_MISMATCH, "different cuDNN versions"),
        (Status.SUBLIBRARY_LOADING_FAILED, "sub-library"),
        (Status.NOT_SUPPORTED_ARCH_MISMATCH, "architecture"),
        (Status.NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, "at run time"),
        (Status.NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE, "sub-library"),
    ],
)
def test_an_error_gives_the_advice_for_its_status(status: Status, advice: str) -> None:
    _, _, text = str(errors.error_from_status(int(status), "cudnnSomething")).partition("\n")
    assert advice in text


def test_errors_are_also_what_python_calls_them() -> None:
    of = errors.error_from_status
    assert isinstance(of(2001, "f"), ValueError)
    assert isinstance(of(4003, "f"), MemoryError)
    assert isinstance(of(4004, "f"), MemoryError)
    assert not isinstance(of(4000, "f"), MemoryError)
    assert isinstance(of(1002, "f"), errors.VersionMismatchError)
    assert isinstance(of(1002, "f"), RuntimeError)
    assert "an unknown status (7777)" in str(of(7777, "f"))
    found = errors.LibraryNotFoundError("nothing", [("here", "no file"), ("there", "no folder")])
    assert str(found).splitlines() == ["nothing", "  here: no file", "  there: no folder"]


def test_versions_as_people_write_them() -> None:
    assert [errors.format_version(v) for v in (92700, 91002, 90000, 8907, 7605)] == [
        "9.27.0",
        "9.10.2",
        "9.0.0",
        "8.9.7",
        "7.6.5",
    ]


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_come_from_the_environment_and_are_checked() -> None:
    config = Config({"CUDNN_CT_ALLOW_TF32": "off", "CUDNN_CT_LIBRARY": "/x"})
    assert (config.allow_tf32, config.library) == (False, "/x")
    assert Config({}).allow_tf32 is True
    config.allow_tf32 = True
    assert config.allow_tf32
    with pytest.raises(TypeError, match="allow_tf32 is True or False, not 1"):
        config.allow_tf32 = 1  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="no setting 'alow_tf32'; there are library, allow_tf32"):
        config.alow_tf32 = True
    with pytest.raises(AttributeError, match="no setting 'nothing'"):
        _ = config.nothing
    for text in ("many", "-3"):
        with pytest.warns(
            errors.CudnnWarning, match=f"='{text}' is ignored: expected a number of at least 0"
        ):
            assert Config({"CUDNN_CT_AUTOTUNE_MAX_ENGINES": text}).autotune_max_engines == 16
    with pytest.warns(
        errors.CudnnWarning, match="^unknown setting CUDNN_CT_ALOW_TF32; did you mean CUDNN_CT_ALLOW_TF32"
    ):
        Config({"CUDNN_CT_ALOW_TF32": "0", "CUDNN_CT_DNN_ENABLED": "auto", "CUDNN_CT_RELIABILITY": "a file"})
    with pytest.warns(errors.CudnnWarning, match="CUDNN_CT_ALLOW_TF32='maybe' is ignored: expected 1/0"):
        assert Config({"CUDNN_CT_ALLOW_TF32": "maybe"}).allow_tf32 is True
    with pytest.raises(TypeError, match="library is a path or None, not 3"):
        config.library = 3  # type: ignore[assignment]
    assert all(name in repr(config) for name in SETTINGS)


# --- the owner ---------------------------------------------------------------------------------------------


class Thing(NativeHandle):
    __slots__ = ()


class TestOwned:
    def make(self) -> tuple[Thing, list[int]]:
        destroyed: list[int] = []
        return Thing(ctypes.c_void_p(5), lambda pointer: destroyed.append(pointer.value)), destroyed

    def test_is_destroyed_once_by_close(self) -> None:
        thing, destroyed = self.make()
        assert not thing.closed
        thing.close()
        thing.close()
        assert thing.closed
        del thing
        gc.collect()
        assert destroyed == [5]

    def test_is_destroyed_with_its_last_reference_and_by_with(self) -> None:
        thing, destroyed = self.make()
        watch = weakref.ref(thing)
        del thing
        assert watch() is None
        assert destroyed == [5]
        thing, destroyed = self.make()
        with thing:
            pass
        assert destroyed == [5]

    def test_passes_itself_to_c_until_it_is_closed(self) -> None:
        thing, _ = self.make()
        strlen = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(lambda p: p)
        assert strlen(thing) == 5
        thing.close()
        with pytest.raises((ValueError, ctypes.ArgumentError), match="this Thing is closed"):
            strlen(thing)
        with pytest.raises(AttributeError, match="'Thing' object has no attribute 'spec'"):
            _ = thing.spec

    def test_warns_when_destroying_fails(self) -> None:
        def fail(pointer: object) -> None:
            raise errors.InternalError("it would not go")

        thing = Thing(ctypes.c_void_p(5), fail)
        with pytest.warns(errors.CudnnWarning, match="Thing could not be destroyed: it would not go"):
            thing.close()


@pytest.mark.parametrize("spread", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_config_copies_its_settings_and_flags(spread: Callable[[Any], Any]) -> None:
    source = Config({"CUDNN_CT_ALGO": "time_once", "CUDNN_CT_DNN_CONV_ALGO_FWD": "fft"})
    source.autotune_max_engines = 3
    source.dnn.conv.algo_bwd_data = "deterministic"
    again = spread(source)
    source.autotune_max_engines = 4
    source.dnn.conv.algo_bwd_data = "none"
    flags = (again.dnn.conv.algo_fwd, again.dnn.conv.algo_bwd_data, again.dnn.conv.algo_bwd_filter)
    assert (again.algo, again.autotune_max_engines, *flags) == (
        "time_once",
        3,
        "fft",
        "deterministic",
        "none",
    )
    again.dnn.conv.algo_fwd = "none"
    assert source.dnn.conv.algo_fwd == "fft"


@pytest.mark.parametrize("spread", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_the_config_of_the_process_can_be_copied(spread: Callable[[Any], Any]) -> None:
    assert repr(spread(ct.config)) == repr(ct.config)
    assert spread(ct.config.dnn.conv).algo_fwd == ct.config.dnn.conv.algo_fwd


def test_config_has_its_part_of_keys_when_no_setting_was_changed() -> None:
    assert Config({}).snapshot == (True, "heuristic", False, None, 16, True)
