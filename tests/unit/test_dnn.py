"""Names, parameters and flags of `cudnn_ct.dnn`, compared with Theano's documentation."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib, dnn
from cudnn_ct._config import Config, config
from cudnn_ct.errors import CudnnWarning, LibraryNotFoundError
from cudnn_ct_dnn.checks import CHECKS, check_of
from cudnn_ct_dnn.flags import FLAGS as OUR_FLAGS
from cudnn_ct_dnn.flags import Flags, variable_of
from tests.dnn_names import CALLS, FLAGS, LEFT_OUT, NAMES, POLICIES, REMOVED
from tests.elf_files import make_header
from tests.processes import ROOT, output_of

PAGE = ROOT / "docs" / "migrating-from-theano.md"
needs_page = pytest.mark.skipif(not PAGE.is_file(), reason="docs is not next to these tests")


def parameters_of(thing: Any) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(thing).parameters.values() if one.name != "self"]


def ours(name: str) -> list[inspect.Parameter]:
    return parameters_of(attrgetter(name)(dnn))


# --- names and parameters ---


def test_dnn_has_the_documented_names() -> None:
    assert sorted(dnn.__all__) == sorted(name for name in NAMES if "." not in name)


@pytest.mark.parametrize("name", NAMES)
def test_dnn_name_has_the_documented_parameters(name: str) -> None:
    rows = [(NAMES[name], ours(name))]
    rows += [(CALLS[name], parameters_of(getattr(dnn, name).__call__))] if name in CALLS else []
    for text, found in rows:
        documented = inspect.signature(eval(f"lambda {text}: None")).parameters.values()
        assert [(one.name, one.default, one.kind) for one in found] == [
            (one.name, one.default, one.kind) for one in documented
        ]


def test_package_imports_dnn_on_first_use() -> None:
    code = (
        "import sys, cudnn_ct as ct; dir(ct); ct.config.algo; "
        "assert not any(name.startswith(('cudnn_ct.dnn', 'cudnn_ct_dnn')) for name in sys.modules); "
        "assert ct.config.dnn.conv.algo_fwd == 'small'; "
        "ct.dnn.dnn_conv; assert 'dnn' in ct.__all__"
    )
    output_of("-c", code)
    assert ct.dnn is dnn


def test_former_paths_mean_the_same_objects() -> None:
    former = (
        "from cudnn_ct.dnn.flags import FLAGS; import cudnn_ct.dnn.rnn; import cudnn_ct.dnn as old; "
        "import cudnn_ct_dnn as new; assert old is new; assert FLAGS is new.flags.FLAGS; "
        "import pickle; assert pickle.loads(b'ccudnn_ct.dnn.rnn\\nRNNBlock\\n.') is new.RNNBlock"
    )
    output_of("-c", former)


# --- the page ---


@needs_page
def test_page_has_a_row_for_each_name() -> None:
    found = re.findall(r"^\| `([\w.]+)` \| (same|changed|left out) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    rows = {name: (verdict, why.strip()) for name, verdict, why in found}
    assert len(rows) == len(found)
    assert set(rows) == {*NAMES, *LEFT_OUT, *FLAGS, *REMOVED}
    for name, (verdict, why) in rows.items():
        assert why or verdict == "same", name
        assert (verdict == "left out") == (name in {*LEFT_OUT, *REMOVED}), name


def signatures() -> Iterator[list[inspect.Parameter]]:
    """Yield the parameters of every name, of the calls of operations, and of the methods of RNNBlock."""
    things = [getattr(dnn, name) for name in dnn.__all__]
    calls = [thing.__call__ for thing in things if inspect.isclass(thing) and "__call__" in dir(thing)]
    methods = [one for name, one in vars(dnn.RNNBlock).items() if name[0] != "_" and inspect.isfunction(one)]
    for thing in (*things, *calls, *methods, dnn.GpuDnnConv.get_out_shape):
        yield parameters_of(thing)


@needs_page
def test_page_has_each_parameter_with_its_defaults() -> None:
    expected: dict[str, set[str]] = defaultdict(set)
    for parameters in signatures():
        for one in parameters:
            expected[one.name] |= set() if one.default is one.empty else {repr(one.default)}
    found: dict[str, set[str]] = defaultdict(set)
    for names, defaults in re.findall(r"^\| (`[^|]+`) \| ((?:–|`)[^|]*) \|", PAGE.read_text(), re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] |= set(re.findall(r"`(.+?)`", defaults))
    assert found == expected


# --- shapes and parameters, without a library ---


def test_get_out_shape_returns_the_shape_of_a_convolution() -> None:
    for operation in (dnn.GpuDnnConv, dnn.GpuDnnConv3d):
        assert operation.get_out_shape((2, 6, 7, 8), (4, 3, 3, 2), "half", (2, 1)) == (2, 4, 4, 9)
        arrays = (np.array(sizes) for sizes in ((2, 6, 7, 8), (4, 3, 3, 2), (1, 1), (2, 1)))
        assert operation.get_out_shape(*arrays) == (2, 4, 4, 9)
    shape = dnn.GpuDnnConv.get_out_shape((2, 6, 7, 8), (4, 3, 3, 3), (1, 0), (1, 1), (2, 3))
    assert shape == (2, 4, 5, 2)
    with pytest.raises(ValueError, match="would be empty along spatial axis 0"):
        dnn.GpuDnnConv.get_out_shape((2, 6, 2, 2), (4, 3, 3, 3), "valid", (1, 1))


def test_get_param_size_counts_elements() -> None:
    block = dnn.RNNBlock("float32", 4, 2, "gru", context_name="dev0")
    assert block.get_param_size([2, 5]) == 3 * ((5 + 4) * 4 + 8 + (4 + 4) * 4 + 8)


BOOLS = [(name, one.name) for name in dnn.__all__ for one in ours(name) if one.annotation == "bool"]
REQUIRED = {
    "GpuDnnReduction": {"red_op": "maximum"},
    "GpuDnnRNNGradInputs": {"rnn_mode": "gru", "grad_h": True, "grad_c": False},
}


@pytest.mark.parametrize(("name", "parameter"), BOOLS)
def test_bool_parameter_accepts_only_bools(name: str, parameter: str) -> None:
    def make(value: Any) -> Any:
        return getattr(dnn, name)(**REQUIRED.get(name, {}) | {parameter: value})

    for value in (1e-3, 0, 1, "fft", None, np.zeros(2, bool)):
        with pytest.raises(TypeError, match=f"{parameter} is not a bool: got .*, expected True or False; pa"):
            make(value)
    if name != "version":
        assert getattr(make(np.True_), parameter) is True


NEEDED = {
    **REQUIRED,
    "GpuDnnConvDesc": {"border_mode": "valid"},
    "GpuDnnSoftmax": {"algo": "fast", "mode": "channel"},
    "GpuDnnSoftmaxGrad": {"algo": "fast", "mode": "channel"},
    "GpuDnnRNNOp": {"rnn_mode": "gru", "direction_mode": "unidirectional"},
    "RNNBlock": {"dtype": "float32", "hidden_size": 4, "num_layers": 1, "rnn_mode": "gru"},
}
MAKERS = [name for name in dnn.__all__ if is_dataclass(getattr(dnn, name))]


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, one.name) for name in MAKERS for one in fields(getattr(dnn, name))]
)
def test_operation_rejects_a_bad_argument_when_it_is_created(name: str, parameter: str) -> None:
    make = getattr(dnn, name)
    for bad in ("nonsense", 2.5, object()):
        number = any(one.name == parameter and "Epsilon" in str(one.type) for one in fields(make))
        if bad == 2.5 and number:
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            make(**NEEDED.get(name, {}) | {parameter: bad})
        words = {"acc_dtype": "dtype", "dtype": "dtype", "running_average_factor": ""}
        assert words.get(parameter, parameter) in str(caught.value)


def test_every_field_of_an_operation_has_a_check() -> None:
    found = {str(one.type) for name in MAKERS for one in fields(getattr(dnn, name))}
    assert set(CHECKS) <= found | {one.removesuffix(" | None") for one in found}
    for annotation in found - {"Algo | None"}:
        with pytest.raises((TypeError, ValueError)):
            check_of(annotation)(object(), "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dnn.GpuDnnConv("nonsense"),
            "algo is not valid for forward: got 'nonsense', expected one of heu",
        ),
        (lambda: dnn.GpuDnnConvGradI(algo="small"), "not valid for backward_data: got 'small', expected one"),
        (lambda: dnn.GpuDnnConv3dGradW(algo="winograd"), "not valid for backward_filter: got 'winograd'"),
        (lambda: dnn.GpuDnnConv(num_groups=0), "num_groups must be between 1"),
        (lambda: dnn.GpuDnnConvDesc("same"), "border_mode must be one of valid, half, full: got 'same'"),
        (lambda: dnn.GpuDnnConvDesc((0, -1)), "border_mode must be between 0"),
        (lambda: dnn.GpuDnnConvDesc(0, (1, 0)), "subsample must be between 1"),
        (lambda: dnn.GpuDnnConvDesc(0, precision="half"), "precision must be one of as_input_f32"),
        (lambda: dnn.GpuDnnPool("median"), "mode must be one of max, max_deterministic, average"),
        (
            lambda: dnn.GpuDnnSoftmaxGrad("fast", "image"),
            "mode must be one of channel, instance: got 'image'",
        ),
        (lambda: dnn.GpuDnnBatchNorm(epsilon=-1), "epsilon must be at least 0"),
        (lambda: dnn.GpuDnnBatchNorm(running_average_factor=2), "factor must be between 0 and 1: got 2"),
        (
            lambda: dnn.RNNBlock("int8", 4, 1, "gru"),
            "dtype must be one of float16, bfloat16, float32, float64",
        ),
        (lambda: dnn.RNNBlock("float32", 4, 0, "gru"), "num_layers must be between 1"),
        (lambda: dnn.RNNBlock("float32", 4, 1, "gru", "jump"), "input_mode must be one of linear, skip"),
    ],
)
def test_operation_names_the_valid_values_when_it_is_created(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "algo", ["engine 3", "graph engine 3 knobs 2=1", "gemm", "fft", "time_once", "autotune"]
)
def test_conv_operation_accepts_the_names_of_conv(algo: str) -> None:
    assert dnn.GpuDnnConv(algo).algo == algo


@pytest.mark.parametrize("name", [name for name in dnn.__all__ if re.match("GpuDnnConv(3d)?(Grad.)?$", name)])
def test_workmem_is_deprecated(name: str) -> None:
    make = getattr(dnn, name)
    with pytest.warns(DeprecationWarning, match="workmem is deprecated; write algo='none'") as caught:
        assert make(workmem="none").algo == "none"
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="workmem"), pytest.raises(ValueError, match="same argument"):
        make(workmem="none", algo="none")


# --- flags ---


def flags_of(environ: dict[str, str]) -> Flags:
    flags: Flags = Config(environ).dnn
    return flags


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Flags:
    monkeypatch.setitem(vars(config), "dnn", flags_of({}))
    return vars(config)["dnn"]  # type: ignore[no-any-return]


def read(flags: Flags, name: str) -> Any:
    """Return a flag, or the flags with a prefix."""
    return attrgetter(name.removeprefix("dnn."))(flags) if name != "dnn" else flags


@pytest.mark.parametrize("name", FLAGS)
def test_flag_has_the_documented_default_and_values(name: str) -> None:
    assert set(OUR_FLAGS) == set(FLAGS)
    default, words = FLAGS[name]
    values = (*words.split(), *(POLICIES if "algo" in name else ()))
    assert set(OUR_FLAGS[name].values) == set(values)
    for environ in ({}, {variable_of(name): ""}):
        assert read(flags_of(environ), name) == default
    owner, _, last = name.rpartition(".")
    for value in values or ("/somewhere",):
        assert read(flags_of({variable_of(name): value}), name) == value
        fresh = flags_of({})
        setattr(read(fresh, owner), last, value)
        assert read(fresh, name) == value


@pytest.mark.parametrize("name", FLAGS)
def test_flag_has_the_spelling_of_the_later_module(name: str) -> None:
    spelling = name.replace(".", "__")
    assert getattr(config, spelling) == read(config.dnn, name)
    assert Config.__annotations__[spelling]  # for type checkers
    fresh = Config({})
    value = (*OUR_FLAGS[name].values, "/somewhere")[-1 if not OUR_FLAGS[name].values else 0]
    setattr(fresh, spelling, value)
    assert getattr(fresh, spelling) == read(fresh.dnn, name) == value


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("dnn__conv__algo", AttributeError, "flag 'dnn.conv.algo' does not exist; the flags are dnn.enabled"),
        ("dnn__conv__algo_bwd", RuntimeError, "dnn.conv.algo_bwd was removed; use dnn.conv.algo_bwd_filter"),
        ("dnn__conv__algo_fwd", ValueError, "got 'nonsense', expected one of none, small, large, fft"),
    ],
)
def test_flag_in_the_spelling_of_the_later_module_is_checked(name: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        setattr(Config({}), name, "nonsense")


def test_flag_assignment_wins_over_the_environment() -> None:
    flags = flags_of({"CUDNN_CT_DNN_ENABLED": "no_check"})
    assert flags.enabled == "no_check"
    flags.enabled = True
    assert flags.enabled == "True"
    flags.library_path = Path("/x")
    assert flags.library_path == "/x"


@pytest.mark.parametrize(
    ("environ", "error", "message"),
    [
        ({"CUDNN_CT_DNN_CONV_ALGO": "fft"}, ValueError, "is not a flag; the flags are CUDNN_CT_DNN_ENABLED"),
        ({"CUDNN_CT_DNN_CONV_ALGO_FWD": "fast"}, ValueError, "got 'fast', expected one of none, small, la"),
        ({"CUDNN_CT_DNN_ENABLED": "true"}, ValueError, "got 'true', expected one of auto, True, False, no"),
        *(
            ({variable_of(name): "small"}, RuntimeError, f"{name} was removed; use {instead}")
            for name, instead in REMOVED.items()
        ),
    ],
)
def test_flag_raises_on_first_use_when_the_environment_is_bad(
    environ: dict[str, str], error: type[Exception], message: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudnnWarning)  # of an unknown variable
        fresh = Config(environ)
    assert fresh.dnn.library_path is None  # a path is available: the import of dnn reads it
    with pytest.raises(error, match=message):
        fresh.dnn.conv.algo_fwd  # noqa: B018


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("dnn.algo", "none", AttributeError, r"flag 'dnn.algo' does not exist; the flags are dnn.enabled"),
        ("dnn.conv.precision", "tf32", ValueError, r"config.dnn.conv.precision is not valid: got 'tf32', e"),
        ("dnn.base_path", 3, TypeError, r"config.dnn.base_path is not a path: got 3, expected a path or "),
        *((name, "small", RuntimeError, f"{name} was removed; use {REMOVED[name]}") for name in REMOVED),
    ],
)
def test_flags_reject_unknown_names_and_values(name: str, value: Any, error: type, message: str) -> None:
    owner, _, last = name.rpartition(".")
    with pytest.raises(error, match=message):
        setattr(read(flags_of({}), owner), last, value)
    if error in (AttributeError, RuntimeError):
        with pytest.raises(AttributeError, match=message):
            read(flags_of({}), name)


def test_path_flags_set_the_library() -> None:
    fresh = Config({"CUDNN_CT_DNN_BASE_PATH": "/base"})
    assert fresh.library is None  # until dnn is used
    fresh.dnn.library_path = "/base/lib64"
    assert fresh.library == "/base/lib64"
    fresh.dnn.library_path = None
    assert fresh.library == "/base"
    fresh = Config({"CUDNN_CT_DNN_BASE_PATH": "/base", "CUDNN_CT_LIBRARY": "/own"})
    fresh.dnn.library_path = "/base/lib64"
    assert fresh.library == "/own"


# --- version and availability ---


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise LibraryNotFoundError("no cuDNN 9 was found")

    monkeypatch.setattr(_lib, "load", missing)


def test_availability_reports_a_missing_library(flags: Flags, no_library: None) -> None:
    with pytest.raises(RuntimeError, match="We can't determine the cudnn version as it is not available: no"):
        dnn.version()
    assert dnn.version(raises=False) == -1
    assert dnn.dnn_present() is False
    assert "no cuDNN 9 was found" in str(dnn.dnn_present.msg)
    assert dnn.dnn_available() is False
    assert dnn.dnn_available.msg == dnn.dnn_present.msg
    flags.enabled = True
    for ask in (dnn.dnn_present, dnn.dnn_available, lambda: dnn.dnn_pool(None, 2)):
        with pytest.raises(RuntimeError, match="You enabled cuDNN, but we aren't able to use it: We can't"):
            ask()


def test_availability_is_true_without_a_library_when_the_flag_is_no_check(
    flags: Flags, no_library: None
) -> None:
    flags.enabled = "no_check"
    assert dnn.dnn_present()
    assert dnn.dnn_available("cuda0")
    assert dnn.dnn_available.msg == "not checked, because the flag dnn.enabled is no_check"


def test_availability_is_false_when_the_flag_is_false(flags: Flags) -> None:
    flags.enabled = False
    assert not dnn.dnn_present()
    assert not dnn.dnn_available()
    assert "the flag dnn.enabled is False" in str(dnn.dnn_available.msg)
    assert dnn.version(raises=False) == -1
    with pytest.raises(RuntimeError, match=r"cuDNN is not used: the flag dnn\.enabled is False"):
        dnn.dnn_pool(None, 2)


def test_version_compares_the_header_with_the_library(
    flags: Flags, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_lib, "version", lambda: 92700)
    flags.base_path = tmp_path
    assert dnn.version() == 92700  # the folder has no header
    assert dnn.dnn_present()
    assert dnn.dnn_present.msg is None
    make_header(tmp_path / "include" / "cudnn_version.h", "9.26.0")
    message = r"Mixed dnn version. The header is version 92600 while the library is version 92700\."
    for raises in (True, False):
        with pytest.raises(RuntimeError, match=message):
            dnn.version(raises)
    assert not dnn.dnn_present()
    flags.include_path = make_header(tmp_path / "other" / "cudnn_version.h", "9.27.0").parent
    assert dnn.version() == 92700
    flags.include_path = tmp_path
    with pytest.raises(RuntimeError, match=r"has no cudnn_version\.h"):
        dnn.version()
