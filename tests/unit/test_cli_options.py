"""Arguments of the commands, without cuDNN and GPU: errors are one line, with exit code 2."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import cudnn_ct as ct
from cudnn_ct import _algorithm_names, _lib, errors, testing
from cudnn_ct._config import config
from cudnn_ct.autotune.store import store
from cudnn_ct.cli import main, offline
from cudnn_ct.cli.algorithms import some
from cudnn_ct.cli.options import INTS, PADDING, SHAPE, Convolution
from cudnn_ct.cli.output import in_bytes
from cudnn_ct.errors import AllocationError, CudnnError, CudnnWarning, NotSupportedError
from cudnn_ct.graph.plan_store import StoredPlan, encode, folder_store
from tests.processes import environment

MonkeyPatch = pytest.MonkeyPatch

CONV = ["--x", "2,3,5,6", "--w", "4,3,3,3"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SHAPE, "8,64,28,28", (8, 64, 28, 28)),
        (SHAPE, "8, 64", (8, 64)),
        (INTS, "2", 2),
        (INTS, "2,1", (2, 1)),
        (PADDING, "1", 1),
        (PADDING, "half", "half"),
        (PADDING, "0:1,2:2", ((0, 1), (2, 2))),
    ],
)
def test_option_types_parse_text(kind: object, text: object, value: object) -> None:
    assert kind.convert(text, None, None) == value


# Without `--x` and `--w`, the rows of `algorithms` have those of `CONV`.
BAD = [
    ("algorithms --x 2,3,5 --w 4,3,3,3", "w has 4 dimensions"),
    ("algorithms --x 2;3;5;6 --w 4,3,3,3", "'2;3;5;6' is not a shape such as 8,64,28,28"),
    ("algorithms --x 2,0,5,6 --w 4,3,3,3", "'2,0,5,6' is not a shape"),
    ("algorithms --x 2,3,5,2147483648 --w 4,3,3,3", "is not a shape"),
    ("algorithms --x 2,3,5,\u0665 --w 4,3,3,3", "is not a shape"),
    ("algorithms --w 4,3,3,3", "Missing option '--x'"),
    ("algorithms --padding all", "'all' is not a padding: expected a number, one for each axis such as 1,2"),
    ("algorithms --padding 1:2:3,1:1", "or before:after for each axis such as 0:1,2:2"),
    ("algorithms --padding 1,1,1", "padding"),
    ("algorithms --stride 0", "stride"),
    ("algorithms --groups 2", "x has 3 channels; w expects 3 x groups 2 = 6"),
    ("algorithms --precision tf32 --dtype float64", "precision='tf32' is for float32"),
    ("algorithms --direction backward_data --dtype int8", "takes float16, bfloat16, float32"),
    ("algorithms --gpu nothing", "unknown GPU: got 'nothing', expected one of h200, t4, a100,"),
    ("algorithms --gpu /", "/ cannot be read: Is a directory"),
    ("selftest --op convolve", "'convolve' is not one of 'conv',"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_commands_exit_with_2_on_wrong_usage(line: str, words: str) -> None:
    conv = CONV if line.startswith("algorithms") and "--w" not in line else []
    ran = CliRunner().invoke(main, [*line.split(), *conv])
    assert ran.exit_code == 2
    *_, last = ran.stderr.strip().splitlines()
    assert last.startswith("Error: ")
    assert words in last
    assert ran.stdout == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"deviceName": "GPU"}', "[" * 100_000, "\0", "NaN"])
def test_algorithms_rejects_a_file_that_is_not_a_description(tmp_path: Path, content: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(content)
    ran = CliRunner().invoke(main, ["algorithms", *CONV, "--gpu", str(path)])
    assert ran.exit_code == 2
    assert f"{path} is not a description of a device" in ran.stderr
    assert len(ran.stderr.splitlines()) == 4


def test_convolution_builds_the_problem_of_each_direction() -> None:
    forward = Convolution((2, 6, 9, 9), (4, 3, 3, 3), "float16", "nhwc", groups=2, padding=1, stride=2)
    assert forward.shapes["y"] == (2, 4, 5, 5)
    for direction in ("forward", "backward_data", "backward_filter"):
        problem = forward._replace(direction=direction).problem()
        assert (problem.direction, problem.x.shape, problem.w.shape) == (direction, forward.x, forward.w)
        assert all(spec.layouts[0] == "nhwc" for spec in (problem.x, problem.w, problem.y))
    assert not forward._replace(dtype="float32").problem(allow_tf32=False).tensor_cores


@pytest.mark.parametrize(
    "line",
    ["algorithms", "cache", "device", "info", "selftest", "cache show", "cache clear"],
)
def test_command_has_help(line: str) -> None:
    assert f"\n  {line.split()[0]} " in CliRunner().invoke(main, []).stdout
    for option in ("--help", "-h"):
        ran = CliRunner().invoke(main, [*line.split(), option])
        assert ran.exit_code == 0
        assert ran.stdout.startswith(f"Usage: main {line}")


# --- where the output goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "stderr"),
    [
        ("cache path >&-", 0, ""),
        ("info >&-", 1, "cudnn-ct: .* names /nowhere, which does not exist.*"),
        ("cache show >/dev/full", 1, "cudnn-ct: .*No space left on device"),
    ],
)
def test_commands_print_at_most_one_line_when_the_output_is_closed(
    tmp_path: Path, command: str, code: int, stderr: str
) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    environ = {"CUDNN_CT_ALGO_CACHE": str(tmp_path / "algo_cache"), "CUDNN_CT_LIBRARY": "/nowhere"}
    done = in_bash(f"{sys.executable} -m cudnn_ct {command}", environ)
    assert re.fullmatch(stderr, done.stderr.strip()), done.stderr
    assert done.returncode == code


@pytest.mark.parametrize("command", ["-m cudnn_ct cache show", "-W error -m cudnn_ct cache show"])
def test_commands_print_one_line_for_a_warning_about_a_variable(tmp_path: Path, command: str) -> None:
    environ = {"CUDNN_CT_ALGO_CAHCE": "1", "CUDNN_CT_ALGO_CACHE": str(tmp_path / "cache")}
    done = in_bash(f"{sys.executable} {command}", environ)
    assert done.returncode == 0
    assert done.stderr == "cudnn-ct: unknown setting CUDNN_CT_ALGO_CAHCE; did you mean CUDNN_CT_ALGO_CACHE?\n"


@pytest.mark.parametrize("command", ["info", "cache path", "device", "algorithms", "selftest --list"])
def test_commands_print_a_line_for_each_unknown_variable(tmp_path: Path, command: str) -> None:
    environ = {
        "CUDNN_CT_ALGO_CACHE": str(tmp_path / "cache"), "CUDNN_CT_LIBRARY": "/nowhere",
        "CUDNN_CT_PRECISION": "1", "CUDNN_CT_XYZZY": "1",
    }  # fmt: skip
    done = in_bash(f"{sys.executable} -m cudnn_ct {command}", environ)
    told = [line for line in done.stderr.splitlines() if "unknown setting" in line]
    assert [line.split(";")[0] for line in told] == [
        "cudnn-ct: unknown setting CUDNN_CT_PRECISION",
        "cudnn-ct: unknown setting CUDNN_CT_XYZZY",
    ]
    assert "did you mean CUDNN_CT_DNN_CONV_PRECISION?" in told[0]


def in_bash(line: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = environment(**environ)
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=120)


# --- the cache ---------------------------------------------------------------------------------------------


KEY = "cuDNN 92700 | NVIDIA H200 | a problem | limits | (16, True)"
VERSIONS = {
    "cudnnGetVersion": ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 92800),
    "cudnnGetCudartVersion": ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 12090),
}
ROW = {"backend": "graph", "algorithm": "engine 1", "time_ms": 0.0125, "rejected": ""}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    path = tmp_path / "algo_cache"
    monkeypatch.setattr(config, "algo_cache", str(path))
    return path


def run(*arguments: str, code: int = 0) -> str:
    ran = CliRunner().invoke(main, ["cache", *arguments])
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.stderr


def test_cache_commands_show_export_clear_and_import(cache: Path, tmp_path: Path) -> None:
    assert run("path") == f"{cache}\n"
    assert run("show") == f"{cache}: 0 tuned algorithms\n"
    store().put(KEY, {"rows": [ROW]})
    heading, columns, row = run("show").splitlines()
    assert heading == f"{cache}: 1 tuned algorithms"
    assert columns.split() == ["time", "algorithm", "cuDNN", "GPU", "operands"]
    assert row.split("  ") == ["12.5 us", "graph engine 1", "9.27.0", "NVIDIA H200", "a problem"]
    told = {"schema": 2, "path": str(cache), "choices": {KEY: {"rows": [ROW]}}, "plans": []}
    assert json.loads(run("show", "--json")) == told
    file = tmp_path / "algo_cache.json"
    assert run("export", str(file)) == f"wrote 1 tuned algorithms to {file}\n"
    assert run("clear") == "deleted 1 tuned algorithms\n"
    assert run("show") == f"{cache}: 0 tuned algorithms\n"
    assert run("import", str(file)) == f"imported 1 tuned algorithms from {file}\n"
    assert KEY in store().export()


def test_cache_commands_show_and_clear_compiled_plans(cache: Path, tmp_path: Path) -> None:
    key = "plan | cuDNN 9.19.0 | NVIDIA H200, 132 SMs, 9.0 | engine 1 without [] | {}"
    facts = {"candidate": {"algorithm": "engine 1"}}
    plans = [StoredPlan(key, facts, b"x" * 2000), StoredPlan("odd", {"unit": 7}, b"1")]
    plans.append(StoredPlan(f"{key} | unit 0123456789ab", {"origin": "device", "unit": "0123456789ab"}, b"1"))
    folder_store().put(*plans, StoredPlan("choice | a", {}))
    lines = run("show").splitlines()
    assert lines[1] == f"{cache / 'plans'}: 3 compiled plans, 2.0 KiB"
    assert "2.0 KiB  engine 1  9.19.0  NVIDIA H200, 132 SMs, 9.0  description" in lines
    row = {"cudnn": "9.19.0", "gpu": "NVIDIA H200, 132 SMs, 9.0", "engine": "engine 1", "bytes": 2000}
    row |= {"origin": "description", "operation": "", "line": "", "unit": ""}
    assert row in json.loads(run("show", "--json"))["plans"]
    assert any(line.endswith("NVIDIA H200, 132 SMs, 9.0  device 01234567") for line in lines)
    file = tmp_path / "plans.file"
    assert run("export-plans", str(file)) == f"wrote 3 compiled plans to {file}\n"
    damaged = cache / "plans" / folder_store().file_name(key)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert run("clear").endswith("deleted 0 tuned algorithms and 2 compiled plans\n")
    assert not list((cache / "plans").glob("*.plan_1"))
    assert run("show") == f"{cache}: 0 tuned algorithms\n"
    file.write_text("other")
    assert "is not a file of compiled plans" in run("import-plans", str(file), code=2)
    file.write_bytes(b"")
    assert run("import-plans", str(file), code=1) == f"cudnn-ct: {file} is empty: it has no compiled plans\n"


def test_export_of_no_plans_says_why_and_writes_an_empty_file(
    cache: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    file = tmp_path / "plans.file"
    for path, reason in ((str(cache), f"{cache} has none"), ("off", "the algorithm cache is disabled")):
        monkeypatch.setattr(config, "algo_cache", path)
        file.write_bytes(b"plans")
        ran = CliRunner().invoke(main, ["cache", "export-plans", str(file)])
        assert (ran.exit_code, ran.stdout) == (0, f"wrote 0 compiled plans to {file}\n")
        assert ran.stderr.startswith(f"cudnn-ct: {file} has no plans to import: {reason}")
        assert file.read_bytes() == b""
        assert ct.import_plans(file) == 0


@pytest.mark.parametrize("command", ["show", "export-plans", "import-plans", "clear"])
def test_cache_commands_fail_when_compiled_plans_cannot_be_read_or_written(
    cache: Path, tmp_path: Path, command: str
) -> None:
    key = "plan | cuDNN 9.19.0 | NVIDIA H200, 132 SMs, 9.0 | engine 1 without [] | {}"
    file = tmp_path / "plans.file"
    folder_store().put(StoredPlan(key, {}, b"x"))
    assert run("export-plans", str(file)) == f"wrote 1 compiled plans to {file}\n"
    (cache / "plans").chmod(0o777)
    told = run(command, *([str(file)] if command.endswith("-plans") else []), code=1)
    assert f"{cache / 'plans'} is world-writable; run chmod o-w" in told


def test_cache_imports_fail_when_the_cache_cannot_be_written(cache: Path, tmp_path: Path) -> None:
    plans, algorithms = tmp_path / "plans.file", tmp_path / "algorithms"
    plans.write_bytes(encode(StoredPlan("plan | cuDNN 9.28.0 for CUDA 12 | a GPU | engine 1 | {}", {}, b"x")))
    store().put(KEY, {"rows": [ROW]})
    run("export", str(algorithms))
    run("clear")
    cache.rmdir()
    cache.write_text("a file")
    testing.reset()
    assert run("import", str(algorithms), code=1).startswith(f"cudnn-ct: the algorithm cache {cache} cannot")
    with testing.install(VERSIONS.get):
        told = run("import-plans", str(plans), code=1)
        folder_store().clear()  # the process has the plan
    assert told.startswith(f"cudnn-ct: the stored plans in {cache / 'plans'} cannot be written: ")
    assert told.endswith("; set CUDNN_CT_ALGO_CACHE to another folder or to 'off'\n")


@pytest.mark.parametrize(
    "rows", [None, 1, [], [1], *([{**ROW, "time_ms": time}] for time in ("x", 10**400, -(10**400)))]
)
def test_cache_show_prints_malformed_records(cache: Path, rows: object) -> None:
    store().put("another key", {"rows": rows})
    assert "another key" in run("show")


def test_cache_show_escapes_control_characters(cache: Path) -> None:
    hostile = "\x1b]0;title\x07\x1b[31m\u202e\ud800\nline"
    store().put(
        f"cuDNN {hostile} | GPU | problem".replace("\ud800", ""),
        {"rows": [{"backend": hostile, "algorithm": hostile, "rejected": hostile}]},
    )
    told = run("show")
    assert len(told.splitlines()) == 3
    assert all(char.isprintable() for line in told.splitlines() for char in line)
    assert told.count(r"\x1b[31m\x202e") == 4


def test_cache_commands_fail_when_the_cache_is_disabled_or_not_a_folder(
    cache: Path, monkeypatch: MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert f"{bad} is not an exported algorithm cache" in run("import", str(bad), code=2)
    told = run("export", str(tmp_path / "no" / "where.json"), code=1)
    assert told.endswith(f"where.json cannot be written: the folder {tmp_path / 'no'} does not exist\n")
    monkeypatch.setattr(config, "algo_cache", bad)
    for verb in ("show", "clear"):
        ran = CliRunner().invoke(main, ["cache", verb])
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert ran.stderr.startswith(f"cudnn-ct: the algorithm cache {bad} cannot be read")
        testing.reset()
    monkeypatch.setattr(config, "algo_cache", "off")
    for verb in ("path", "show", "clear"):
        assert run(verb, code=3) == "cudnn-ct: the algorithm cache is disabled: CUDNN_CT_ALGO_CACHE is off\n"


# --- planning, if the child process fails --------------------------------------------------


@pytest.mark.parametrize(
    ("code", "out", "words"),
    [
        (-11, "", "ended with SIGSEGV: last words"),
        (7, '{"rows": []}', "ended with exit code 7"),
        (0, "", "ended with exit code 0"),
        (0, "not JSON", "returned 'not JSON', expected JSON"),
        (0, '\n{"error": "too bad", "rejected": false, "notes": []}', "too bad"),
    ],
)
def test_planning_raises_when_its_process_fails(code: int, out: str, words: str) -> None:
    with pytest.raises(CudnnError, match=words):
        offline._result(subprocess.CompletedProcess([], code, out, "first words\nlast words\n"))


def test_planning_warns_of_functions_that_the_stub_lacks() -> None:
    line = "Could not load symbol cuFancy. Error: /proc/self/fd/3: undefined symbol: cuFancy\n"
    with pytest.warns(CudnnWarning, match="looks up cuFancy, which the stub"):
        offline._warn_of_missing(line * 3)
    with warnings.catch_warnings(action="error"):
        offline._warn_of_missing("Could not load other things")


def test_random_array_raises_when_no_memory_suffices() -> None:
    with pytest.raises(AllocationError, match=r"an array of shape \(2147483647, 2147483647, 2147483647\)"):
        some((2**31 - 1,) * 3, "float32")


def test_planning_is_skipped_when_cudnn_is_too_old(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(_lib, "load", lambda: SimpleNamespace(version=90701, installation=None))
    with pytest.raises(NotSupportedError, match=r"needs cuDNN >= 9.8, have 9.7.1"):
        offline.plan({"deviceVer": 900}, [])


# --- names -------------------------------------------------------------------------------------------------


def test_algorithms_accepts_the_earlier_name_of_gpu_with_a_line() -> None:
    ran = CliRunner().invoke(main, ["algorithms", *CONV, "--device", "nothing"])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("cudnn-ct: --device was renamed: use --gpu\n")
    assert "unknown GPU: got 'nothing'" in ran.stderr
    ran = CliRunner().invoke(main, ["algorithms", *CONV, "--device", "h200", "--gpu", "h200"])
    assert (ran.exit_code, "pass --gpu alone" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("printed", "plain"),
    [
        ("graph engine 62 knobs tile_size=5, tilek=1", "engine 62 knobs 2=5,13=1"),
        ("engine 62 knobs TILE_SIZE=5,13=-1", "engine 62 knobs 2=5,13=-1"),
        ("graph engine 4", "engine 4"),
        ("legacy gemm", "gemm"),
        ("legacy engine 4", "legacy engine 4"),
        ("engine 3 knobs colour=2", "engine 3 knobs colour=2"),
    ],
)
def test_printed_names_of_engines_are_accepted(printed: str, plain: str) -> None:
    assert _algorithm_names.plain_name(printed) == plain
    named = _algorithm_names.with_knob_names(plain)
    assert _algorithm_names.plain_name(named) == plain


def test_names_of_unknown_knobs_are_rejected() -> None:
    assert _algorithm_names.checked_name("engine 62 knobs tile_size=5") == "engine 62 knobs tile_size=5"
    with pytest.raises(ValueError, match="expected one of heuristic"):
        _algorithm_names.checked_name("engine 3 knobs colour=2")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_bytes_have_units(number: int, text: str) -> None:
    assert in_bytes(number) == text


def test_recorded_graph_that_several_lines_need_has_the_operation_and_the_first_line() -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        a = ct.zeros((64, 64), "float16")
        line = sys._getframe().f_lineno + 1
        ct.matmul(a, a)
        ct.matmul(a, a)
    (request,) = recorded.requests.values()
    assert request.call == f"matmul at test_cli_options.py:{line}"
    assert errors.caller_from(request.call).operation == "matmul"


@pytest.mark.parametrize("module", ["torch._ops", "torch.nn.modules.module", "jax._src.core"])
def test_line_of_a_call_inside_another_library_is_that_of_the_program(module: str) -> None:
    library: dict[str, Any] = {"__name__": module}
    exec("def call(function, *arguments):\n    return function(*arguments)", library)
    with ct.record_plans(shapes_only=True) as recorded:
        library["call"](ct.matmul, ct.zeros((64, 64), "float16"), ct.zeros((64, 64), "float16"))
    (request,) = recorded.requests.values()
    assert re.fullmatch(r"matmul at test_cli_options\.py:\d+", request.call)
