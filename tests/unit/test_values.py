"""Dtypes, errors, settings and the owner of native pointers."""

from __future__ import annotations

import copy
import ctypes
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import errors
from cudnn_ct._bindings.enums import DataType, Status
from cudnn_ct._cache_files import cache_folder
from cudnn_ct._config import SETTINGS, Config
from cudnn_ct._handle import NativeHandle
from cudnn_ct.dtypes import DTYPES, as_dtype
from cudnn_ct_dnn.flags import FLAGS
from cudnn_doctor.read import variables as _variables
from cudnn_doctor.read.variables import unknown_variables
from tests.processes import run_python

# --- dtypes ------------------------------------------------------------------------------------------------

CUDNN_NAMES = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16",
    "float8_e4m3": "FP8_E4M3", "float8_e5m2": "FP8_E5M2",
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "bool": "BOOLEAN",
}  # fmt: skip


def test_dtypes_have_the_codes_of_cudnn_and_sizes_of_numpy() -> None:
    assert {name: row.code for name, row in DTYPES.items()} == {
        name: DataType[code] for name, code in CUDNN_NAMES.items()
    }
    for name, row in DTYPES.items():
        assert row.numpy.itemsize == row.itemsize
        assert as_dtype(name) is as_dtype(row.numpy) is as_dtype(row.numpy.type) is as_dtype(row) is row


def test_as_dtype_accepts_the_names_of_numpy_and_rejects_others() -> None:
    names = {"half": "float16", float: "float64", "double": "float64", "f4": "float32", "<f4": "float32"}
    names |= {ml_dtypes.float8_e4m3fn: "float8_e4m3", "float": "float64"}
    assert {name: as_dtype(name).name for name in names} == names
    for bad in (None, "complex64", np.complex128, "U3", object, "float12", 3.5, None.__class__):
        with pytest.raises(TypeError, match=r"cuDNN has no dtype .*; it has float32, float64, float16"):
            as_dtype(bad)


# --- errors ------------------------------------------------------------------------------------------------


FAMILIES = (
    errors.NotInitializedError,
    errors.BadParamError,
    errors.NotSupportedError,
    errors.InternalError,
    errors.ExecutionFailedError,
)
ADVICE = {
    Status.NOT_INITIALIZED: "nvidia-smi",
    Status.SUBLIBRARY_VERSION_MISMATCH: "different cuDNN versions",
    Status.SUBLIBRARY_LOADING_FAILED: "sub-library",
    Status.NOT_SUPPORTED_ARCH_MISMATCH: "architecture",
    Status.NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING: "at run time",
    Status.NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE: "sub-library",
}


@pytest.mark.parametrize("status", [s for s in Status if s])
def test_error_has_the_class_and_the_advice_of_its_status(status: Status) -> None:
    error = errors.error_from_status(int(status), "cudnnSomething", "cuDNN's message", 91900)
    loading = status in (1008, 3009)
    assert isinstance(error, errors.LibraryLoadError if loading else FAMILIES[int(status) // 1000 - 1])
    assert (error.status, error.function, error.detail) == (status, "cudnnSomething", "cuDNN's message")
    first, _, advice = str(error).partition("\n")
    name = f"CUDNN_STATUS_{status.name} ({int(status)})"
    assert first == f"cudnnSomething returned {name}: cuDNN's message [cuDNN 9.19.0]"
    assert ADVICE.get(status, "") in advice


def test_error_has_the_builtin_class_of_its_kind() -> None:
    kinds = {status: type(errors.error_from_status(status, "f")) for status in (2001, 4000, 4003, 4004, 1002)}
    assert issubclass(kinds[2001], ValueError)
    assert [issubclass(kinds[status], MemoryError) for status in (4000, 4003, 4004)] == [False, True, True]
    assert kinds[1002] is errors.VersionMismatchError
    assert "an unknown status (7777)" in str(errors.error_from_status(7777, "f"))


def test_library_not_found_lists_the_places() -> None:
    missing = errors.LibraryNotFoundError("nothing", [("here", "no file"), ("there", "no folder")])
    assert str(missing).splitlines() == ["nothing", "  here: no file", "  there: no folder"]


def test_format_version_separates_the_parts() -> None:
    versions = {92700: "9.27.0", 91002: "9.10.2", 90000: "9.0.0", 8907: "8.9.7", 7605: "7.6.5"}
    assert {number: errors.format_version(number) for number in versions} == versions


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_come_from_the_environment() -> None:
    config = Config({"CUDNN_CT_ALLOW_TF32": "off", "CUDNN_CT_LIBRARY": "/x"})
    assert (config.allow_tf32, config.library) == (False, "/x")
    assert Config({}).snapshot == (True, "heuristic", False, None, 16, True, False, "new", True, False)
    config.allow_tf32 = True
    assert config.allow_tf32
    assert all(name in repr(config) for name in SETTINGS)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("allow_tf32", 1, TypeError, "allow_tf32 is True or False, not 1"),
        ("library", 3, TypeError, "library is a path or None, not 3"),
        ("algo", "fastest", ValueError, "or the name of an algorithm, not 'fastest': expected one of heur"),
        ("algo", "engine 3 knobs", ValueError, "not 'engine 3 knobs': expected one of heuristic, autotune"),
        ("algo", "", ValueError, "not '': expected one of heuristic, autotune"),
        ("alow_tf32", True, AttributeError, "no setting 'alow_tf32'; there are library, allow_tf32"),
    ],
)
def test_settings_reject_values_and_names(
    name: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        setattr(Config({}), name, value)
    if error is AttributeError:
        with pytest.raises(error, match=f"no setting '{name}'"):
            getattr(Config({}), name)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("AUTOTUNE_MAX_ENGINES", "many", "='many' is ignored: expected a number of at least 0"),
        ("AUTOTUNE_MAX_ENGINES", "-3", "='-3' is ignored: expected a number of at least 0"),
        ("ALLOW_TF32", "maybe", "CUDNN_CT_ALLOW_TF32='maybe' is ignored: expected 1/0"),
        (
            "ALGO",
            "fastest",
            "CUDNN_CT_ALGO='fastest' is ignored: expected one of heuristic, autotune, online, guess",
        ),
        ("ONLINE_SECONDS", "abc", "='abc' is ignored: expected a number of seconds of at least 0"),
        ("NONSENSE", "0", "^unknown setting CUDNN_CT_NONSENSE; settings are the attributes of ct.config$"),
        ("DNN_CONV_ALGO_FWDD", "x", "^unknown .*; did you mean CUDNN_CT_DNN_CONV_ALGO_FWD"),
        ("DNN_BIN_PATH", "x", "^unknown setting CUDNN_CT_DNN_BIN_PATH; did you mean CUDNN_CT_DNN_LIBRARY_"),
        ("TF32", "0", "^unknown setting CUDNN_CT_TF32; did you mean CUDNN_CT_ALLOW_TF32"),
        ("ALOW_TF32", "0", "^unknown setting CUDNN_CT_ALOW_TF32; did you mean CUDNN_CT_ALLOW_TF32"),
    ],
)
def test_settings_warn_of_variables_that_they_ignore(variable: str, text: str, message: str) -> None:
    known = {"CUDNN_CT_DNN_ENABLED": "auto", "CUDNN_CT_RELIABILITY": "a file"}
    with pytest.warns(errors.CudnnWarning, match=message) as caught:
        config = Config({**known, f"CUDNN_CT_{variable}": text})
    assert len(caught) == 1
    assert config.snapshot == Config({}).snapshot
    assert caught[0].filename == __file__


def test_off_has_any_case() -> None:
    assert Config({"CUDNN_CT_CERTIFY": " OFF"}).certify == "off"
    assert Config({"CUDNN_CT_REPLAY": "OFF"}).replay is False
    assert cache_folder(Config({"CUDNN_CT_ALGO_CACHE": "OFF"}).algo_cache, "choices") == (None, "")


def test_unknown_variables_are_found_in_any_spelling_of_the_prefix() -> None:
    names = ("CUDNN_CTALGO", "CUDNNCT_ALGO", "cudnn_ct_algo", "CUDNN_ALGO", "CUDNN_CT_ALGO")
    assert unknown_variables(names) == dict.fromkeys(sorted(names[:3]), "CUDNN_CT_ALGO")


def test_names_of_variables_are_those_of_the_settings_and_the_flags() -> None:
    assert set(_variables.SETTINGS) == set(SETTINGS)
    assert set(_variables.FLAGS) == set(FLAGS)


def test_variables_of_the_tests_are_known() -> None:
    root = Path(__file__).parents[2]
    folders = [root / name for name in ("tests", "benchmarks", "tools", ".ci") if (root / name).is_dir()]
    files = [file for folder in folders for file in folder.rglob("*.py") if file != Path(__file__)]
    read = r"""environ(?:\.get\(|\[)["'](CUDNN_CT_\w+)"""
    names = {name for file in files for name in re.findall(read, file.read_text("utf-8"))}
    assert "CUDNN_CT_HYPOTHESIS_PROFILE" in names
    assert unknown_variables(names) == {}


@pytest.mark.parametrize(
    "name",
    ["heuristic", "time_once", "fft", "gemm", "persist_static", "engine 38", "graph engine 4 knobs 2=-1"],
)
def test_setting_algo_accepts_names_of_any_operation(name: str) -> None:
    config = Config({"CUDNN_CT_ALGO": name})
    assert config.algo == name
    config.algo = "autotune"


@pytest.mark.parametrize("use", ["ct.config.replay", "from cudnn_ct import (\n    conv)"])
def test_warnings_of_settings_show_the_line_that_uses_the_package(tmp_path: Path, use: str) -> None:
    """Not the line of the package that reads the variables at the first use."""
    program = tmp_path / "program.py"
    program.write_text(f"import cudnn_ct as ct\n{use}\n")
    done = run_python(program, CUDNN_CT_ALLOW_TF32="maybe")
    assert done.returncode == 0
    first, line = done.stderr.splitlines()
    assert first.startswith(f"{program}:2: CudnnWarning: CUDNN_CT_ALLOW_TF32='maybe' is ignored: ")
    assert line.strip() == use.splitlines()[0]


# --- the owner ---------------------------------------------------------------------------------------------


class Thing(NativeHandle):
    __slots__ = ()


def make() -> tuple[Thing, list[int]]:
    destroyed: list[int] = []
    return Thing(ctypes.c_void_p(5), lambda pointer: destroyed.append(pointer.value)), destroyed


@pytest.mark.parametrize("end", ["close", "del", "with"])
def test_handle_is_destroyed_once(end: str) -> None:
    thing, destroyed = make()
    assert not thing.closed
    if end == "close":
        thing.close()
        thing.close()
        assert thing.closed
    elif end == "with":
        with thing:
            pass
    del thing
    assert destroyed == [5]


def test_handle_passes_itself_to_c_until_it_is_closed() -> None:
    thing, _ = make()
    identity = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(lambda p: p)
    assert identity(thing) == 5
    thing.close()
    with pytest.raises((ValueError, ctypes.ArgumentError), match="this Thing is closed"):
        identity(thing)
    with pytest.raises(AttributeError, match="'Thing' object has no attribute 'spec'"):
        _ = thing.spec


@pytest.mark.parametrize("spread", [copy.copy, copy.deepcopy, pickle.dumps])
def test_handle_cannot_be_copied_or_pickled(spread: Callable[[Any], Any]) -> None:
    """A copy would hold the pointer after the original has destroyed it."""
    with pytest.raises(TypeError, match="Thing owns a native object"):
        spread(make()[0])


def test_handle_warns_when_destroying_fails() -> None:
    def fail(pointer: object) -> None:
        raise errors.InternalError("it is in use")

    thing = Thing(ctypes.c_void_p(5), fail)
    with pytest.warns(errors.CudnnWarning, match="Thing could not be destroyed: it is in use"):
        thing.close()


@pytest.mark.parametrize("spread", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_config_copies_its_settings_and_flags(spread: Callable[[Any], Any]) -> None:
    source = Config({"CUDNN_CT_ALGO": "time_once", "CUDNN_CT_DNN_CONV_ALGO_FWD": "fft"})
    source.autotune_max_engines = 3
    source.dnn.conv.algo_bwd_data = "deterministic"
    again = spread(source)
    source.autotune_max_engines = 4
    source.dnn.conv.algo_bwd_data = "none"
    flags = again.dnn.conv
    assert (again.algo, again.autotune_max_engines) == ("time_once", 3)
    assert (flags.algo_fwd, flags.algo_bwd_data, flags.algo_bwd_filter) == ("fft", "deterministic", "none")
    flags.algo_fwd = "none"
    assert source.dnn.conv.algo_fwd == "fft"
    assert repr(spread(ct.config)) == repr(ct.config)
    assert spread(ct.config.dnn.conv).algo_fwd == ct.config.dnn.conv.algo_fwd
