"""Findings of the doctor: from its child processes, requirements, and other installed packages."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_doctor as doctor
from cudnn_ct._config import config
from cudnn_ct._dlopen import find_cudnn, require
from cudnn_ct.errors import CudnnError
from cudnn_doctor import (
    checks,
    companions,
    driver,
    libraryset,
    load_check,
    locate,
    packages,
    records,
    search,
)
from cudnn_doctor.checks import Requirements
from cudnn_doctor.finding import Finding, Severity, codes, finding
from cudnn_doctor.libraryset import LibrarySet
from cudnn_doctor.read import elf as _elf
from cudnn_doctor.read import files as _files
from cudnn_doctor.read.installation import inspect
from cudnn_doctor.read.libraries import CUDA, SUBLIBRARIES, Library
from cudnn_doctor.read.versions import Need
from cudnn_doctor.sandbox import Report
from tests.doctor_sites import read
from tests.elf_files import NOT_JIT, make_cudnn, make_defining, make_elf, make_header, make_jit

MonkeyPatch = pytest.MonkeyPatch


@pytest.fixture
def found(tmp_path: Path) -> libraryset.LibrarySet:
    return read(make_cudnn(tmp_path / "cudnn/lib", "9.27.0").parent)


@pytest.fixture
def old(tmp_path: Path) -> libraryset.LibrarySet:
    """A cuDNN whose engines need libnvrtc."""
    later = ("ext", "engines_tensor_ir")
    return read(make_cudnn(tmp_path / "old/lib", "9.20.0", without=later).parent)


def report(*steps: dict[str, Any], ended: str = "done", **rest: Any) -> Report:
    return Report(steps, ended, 0.1, **rest)


def said(findings: Any) -> dict[str, str]:
    return {each.code: each.message for each in findings}


# --- cuDNN in a child --------------------------------------------------------------------------------------


def good(found: libraryset.LibrarySet, **changes: Any) -> list[dict[str, Any]]:
    maps = [library.real for library in found.libraries.values()]
    steps = {
        "libcuda": {"how": "stub"},
        "load": {"error": ""},
        "version": {"value": 92700},
        "check": {"name": "cudnnOpsVersionCheck", "status": 0, "text": ""},
        "maps": {"files": maps},
        "finalize": {"status": 0, "text": ""},
    }
    for name, values in changes.items():
        steps[name] = {**steps[name], **values}
    return [{"step": name, **values} for name, values in steps.items()]


LOG = "w! Reason: component cudnn_graph version 9.28.0 loaded component cudnn_heuristic version 9.27.0. All"
REFUSALS = (("/x/libcudnn_cnn.so.9", "undefined symbol: foo"),)
TOO_OLD = ("/x/libstdc++.so.6", "version lookup error: version `GLIBCXX_9.9' not found")
OLD_DRIVER = ("/x/libcudnn_engines.so.9", "undefined symbol: cuTensorMapEncodeTiled")


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"load": {"error": "wrong ELF class"}}, "load-failed", "wrong ELF class"),
        ({"version": {"value": 91002}}, "runtime-version", "9.10.2"),
        ({"check": {"status": 3009}}, "check-failed", "3009 (CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UN"),
        ({"check": {"status": 1002}}, "mixed-versions", "cudnnOpsVersionCheck"),
        ({"finalize": {"status": 1008}}, "finalize-failed", "SUBLIBRARY_LOADING_FAILED"),
        ({"finalize": {"status": 7777}}, "finalize-failed", "7777"),
        ({"maps": {"files": ["/else/libcudnn_ops.so.9"]}}, "mixed-at-run-time", "/else/libcudnn_ops.so.9"),
        ({"maps": {"files": []}}, "jit-only", "libcudnn_heuristic.so.9"),
        ({"check": {"status": 3009}, "refusals": REFUSALS}, "linker-error", "undefined symbol: foo"),
        ({"log": LOG}, "mixed-versions", "cudnn_graph 9.28.0 loaded cudnn_heuristic 9.27.0"),
        ({"asked_by": "9.10.2"}, "foreign-shim", "9.10.2"),
        ({"ended": "SIGABRT", "lost": ("libz.so.1",)}, "missing-system-library", "libz.so.1 was not found"),
        ({"ended": "SIGABRT", "refusals": (TOO_OLD,)}, "old-system-library", "GLIBCXX_9.9"),
        ({"check": {"status": 3009}, "refusals": (OLD_DRIVER,)}, "driver-too-old", "cuTensorMapEncodeTiled"),
        ({"ended": "hung", "begun": "cuInit"}, "probe-hung", "the driver did not return from cuInit"),
        ({"ended": "SIGABRT", "begun": "cuInit"}, "driver-broken", "cuInit killed"),
        ({"ended": "SIGSEGV"}, "probe-crashed", "SIGSEGV"),
        ({"ended": "exit 1"}, "probe-crashed", "exit 1"),
        ({"ended": "hung"}, "probe-hung", "did not return"),
        ({"ended": "refused"}, "not-probed", "cannot start"),
    ],
)
def test_load_check_finds_the_defect_of_a_run(
    found: libraryset.LibrarySet, changes: dict[str, Any], code: str, words: str
) -> None:
    ending = {name: changes.pop(name) for name in ("refusals", "log", "ended", "lost") if name in changes}
    if asked := changes.pop("asked_by", ""):
        ending["asked_by"] = {found.libraries[""].real: asked}
    begun = {"step": "begin", "what": changes.pop("begun", "cudnnGetVersion")}
    steps = [begun] if "ended" in ending else good(found, **changes)
    findings = said(load_check.judge(found, report(*steps, **ending)))
    assert words in findings[code]


def test_load_check_never_advises_to_remove_a_preloaded_library(
    found: libraryset.LibrarySet, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/else/libcudnn_ops.so.9")
    steps = good(found, maps={"files": ["/else/libcudnn_ops.so.9"]})
    for advice in ("see preloaded", ""):
        findings = load_check.judge(replace(found, advice=advice), report(*steps))
        fixes = {each.code: each.fix for each in findings}
        assert fixes["mixed-at-run-time"] == (advice or "unset LD_PRELOAD; then run the doctor again")


def test_load_check_advises_to_unset_only_variables_that_are_set(
    found: libraryset.LibrarySet, monkeypatch: MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for variables, words in (((), ""), (("LD_PRELOAD",), "unset LD_PRELOAD; then ")):
        for name in variables:
            monkeypatch.setenv(name, "/x.so")
        for changes in ({"version": {"value": 91002}}, {"maps": {"files": ["/x/libcudnn_ops.so.9"]}}):
            first = next(iter(load_check.judge(found, report(*good(found, **changes)))))
            assert first.fix.startswith(words or ("install", "remove"))
            assert ("unset" in first.fix) == bool(words)


def test_load_check_finds_nothing_in_a_good_run(found: libraryset.LibrarySet) -> None:
    no_libcuda = {"libcuda": {"how": "none: noexec"}, "finalize": {"status": 1008}}
    for changes, rest in (({}, {}), ({}, {"refusals": REFUSALS, "lost": ("libx.so",)}), (no_libcuda, {})):
        run = report(*good(found, **changes), **rest)
        assert said(load_check.judge(found, run, run)) == {}
    full = report(*good(found, finalize={"status": 1008}))
    assert "_CONFIG=FULL" in said(load_check.judge(found, report(*good(found)), full))["finalize-failed"]


@pytest.mark.parametrize("make", [make_jit, make_cudnn])
def test_load_check_calls_functions_of_libraries_that_the_set_has(
    tmp_path: Path, monkeypatch: MonkeyPatch, make: Any
) -> None:
    """The checks of other libraries abort in JIT wheels up to 9.16."""
    found, plans = read(make(tmp_path / "lib", "9.16.0").parent), list[Any]()

    def run(given: Any, *_: Any) -> list[Report]:
        plans.extend(plan for plan, _ in given)
        return [report(*good(found))] * len(given)

    monkeypatch.setattr(load_check.sandbox, "run", run)
    load_check.check(found, 1.0)
    called = {name for plan in plans for name in plan["checks"]}
    assert ("cudnnOpsVersionCheck" in called) == (make is make_cudnn)
    assert "cudnnGraphVersionCheck" in called


def test_checks_accept_a_wheel_that_compiles_at_run_time(tmp_path: Path) -> None:
    others = sorted(SUBLIBRARIES.keys() - {"graph", "engines_runtime_compiled"})
    found = read(make_cudnn(tmp_path / "nvidia/cudnn_jit/lib", without=others).parent)
    assert (list(checks.check_complete(found)), found.package) == ([], "nvidia-cudnn-jit-cu12")
    run, full = (report(*good(found, finalize={"status": n})) for n in (0, 1008))
    assert said(load_check.judge(found, run, full)) == {}
    (tmp_path / "nvidia/cudnn_jit/lib/libcudnn_graph.so.9").unlink()
    assert "libcudnn_graph" in said(checks.check_complete(read(Path(found.folder))))["missing-library"]


# --- the driver --------------------------------------------------------------------------------------------


def gpu(**changes: Any) -> dict[str, Any]:
    row = {"index": 0, "name": "NVIDIA X", "arch": 90, "status": 0, "free": 8 << 30, "total": 16 << 30}
    return {"step": "device", **row, **changes}


def answers(version: int = 12080, init: int = 0, path: str = "/usr/lib/libcuda.so.1") -> list[dict[str, Any]]:
    return [
        {"step": "driver", "error": "", "path": path},
        {"step": "driver_version", "status": 0, "value": version},
        {"step": "init", "status": init},
    ]


COUNTED = {"step": "count", "status": 0, "value": 1}
CREATED = {"step": "create", "status": 0, "text": ""}
BEGUN_CREATE = {"step": "begin", "what": "cudnnCreate"}
NO_FILE = {"step": "driver", "error": "cannot open shared object file: No such file"}


@pytest.mark.parametrize(
    ("made", "code", "severity"),
    [
        (report(NO_FILE), "no-driver", "note"),
        (report({"step": "driver", "error": "file too short"}), "driver-broken", "error"),
        (report(*answers(init=34)), "driver-stub", "error"),
        (
            report(*answers(path="/usr/local/cuda/lib64/stubs/libcuda.so"), COUNTED, gpu()),
            "driver-stub",
            "error",
        ),
        (report(*answers(path="/usr/local/cuda/compat/libcuda.so.1"), gpu()), "driver-compat", "note"),
        (report(*answers(init=804)), "driver-broken", "error"),
        (report(*answers(init=100)), "no-gpu", "note"),
        (report(*answers(), {**COUNTED, "value": 0}), "no-gpu", "note"),
        (report(*answers(), gpu(free=1 << 20)), "low-memory", "warning"),
        (report(*answers(), gpu(status=2)), "gpu-unavailable", "error"),
        (report(*answers(), gpu(), {**CREATED, "status": 1001}), "create-failed", "error"),
        (report(*answers(), gpu(), {"step": "load", "error": "no"}), "create-failed", "error"),
        (report(*answers(), ended="SIGSEGV"), "driver-broken", "error"),
        (report(*answers(), gpu(), BEGUN_CREATE, ended="SIGABRT"), "create-failed", "error"),
        (report(ended="SIGBUS"), "driver-broken", "error"),
        (report(ended="hung"), "probe-hung", "error"),
        (report(ended="refused"), "not-probed", "warning"),
    ],
)
def test_driver_check_finds_the_defect(made: Report, code: str, severity: str) -> None:
    findings = {each.code: each.severity.word for each in driver.judge(None, made, Requirements())}
    assert findings[code] == severity


CAUSES = (
    (2, "gpu-unavailable", "out of memory", "free memory"),
    (3, "driver-broken", "not initialised", "kernel module"),
    (35, "driver-too-old", "too old", "580.65.06"),
    (46, "gpu-unavailable", "exclusive mode", "nvidia-smi -c DEFAULT"),
    (101, "gpu-unavailable", "device is invalid", "CUDA_VISIBLE_DEVICES"),
    (304, "gpu-unavailable", "operating system", "/dev/nvidia*"),
    (802, "gpu-unavailable", "not ready", "nvidia-fabricmanager"),
    (803, "driver-broken", "different versions", "kernel module"),
    (804, "driver-broken", "forward compatibility", "/compat"),
    *((status, "gpu-unavailable", "MPS server", "") for status in range(805, 812)),
    (805, "gpu-unavailable", "cannot be reached", "nvidia-cuda-mps-control"),
    (999, "driver-broken", "unknown error", "nvidia_uvm"),
    (12345, "driver-broken", "see nvidia-smi", "install the driver"),
)


@pytest.mark.parametrize(("status", "code", "reason", "advice"), CAUSES)
@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "creating a context on GPU 0 (NVIDIA X)"])
def test_driver_check_gives_each_error_its_cause_and_advice(
    call: str, status: int, code: str, reason: str, advice: str
) -> None:
    count = {"step": "count", "status": status, "value": 0}
    steps = {"cuInit": answers(init=status), "cuDeviceGetCount": [*answers(), count]}
    made = report(*steps.get(call, [*answers(), gpu(status=status)]))
    (found,) = driver.judge(None, made, Requirements(gpu=True))
    assert (found.code, found.severity.word) == (code, "error")
    assert found.message.startswith(f"{call} returned {status}: ")
    assert reason in found.message
    assert advice in found.fix
    assert ("install the driver" in found.fix) <= (code == "driver-broken")


@pytest.mark.parametrize(
    ("steps", "call"),
    [
        ([], "dlopen libcuda.so.1"),
        (answers()[:1], "cuDriverGetVersion"),
        (answers()[:2], "cuInit"),
        ([*answers()[:1], *answers()[2:]], "cuDriverGetVersion"),
        (answers(), "cuDeviceGetCount"),
        ([*answers(), COUNTED], "cuDevicePrimaryCtxRetain"),
        ([*answers(), {**COUNTED, "value": 2}, gpu()], "cuDevicePrimaryCtxRetain"),
        ([*answers(), COUNTED, gpu()], "cudnnCreate"),
    ],
)
def test_driver_check_reports_a_lost_answer(
    found: libraryset.LibrarySet, steps: list[dict[str, Any]], call: str
) -> None:
    required = (Requirements(driver=True), "error"), (Requirements(gpu=True), "error")
    for asked, severity in ((Requirements(), "warning"), *required):
        (refused,) = driver.judge(found, report(ended="refused"), asked)
        assert (refused.code, refused.severity.word) == ("not-probed", severity)
        (lost,) = driver.judge(found, report(*steps), asked)
        assert (lost.code, lost.severity.word) == ("not-probed", severity)
        assert lost.message == f"a child process ended without an answer of {call}"


@pytest.mark.parametrize("lost", ["load", "version", "finalize"])
def test_load_check_reports_a_lost_answer(found: libraryset.LibrarySet, lost: str) -> None:
    steps = [step for step in good(found) if step["step"] != lost]
    assert "without an answer" in said(load_check.judge(found, report(*steps)))["not-probed"]


@pytest.mark.parametrize(
    ("wsl", "present", "words"),
    [
        (False, False, "docker run"),
        (True, False, "on Windows"),
        (True, True, "on Windows"),
        (False, True, "docker"),
    ],
)
def test_driver_check_names_the_folder_of_wsl(
    tmp_path: Path, monkeypatch: MonkeyPatch, wsl: bool, present: bool, words: str
) -> None:
    for made, name in ((wsl, "dxg"), (present, "libcuda.so.1")):
        if made:
            (tmp_path / name).touch()
    monkeypatch.setattr(driver, "WSL", str(tmp_path))
    monkeypatch.setattr(driver, "_WSL_MARK", str(tmp_path / "dxg"))
    (missing,) = driver.judge(None, report(NO_FILE), Requirements())
    assert words in missing.fix
    assert bool(missing.commands) == (wsl and present)
    assert (str(tmp_path) in missing.message) == (wsl and present)
    assert ("/usr/lib/wsl/lib" in missing.fix) == wsl


@pytest.mark.parametrize(
    ("path", "on_path", "words"),
    [
        ("/usr/local/cuda/lib64/stubs/libcuda.so.1", True, "from LD_LIBRARY_PATH"),
        ("/usr/local/cuda/lib64/stubs/libcuda.so.1", False, "/etc/ld.so.conf.d"),
        ("/usr/local/cuda/compat/libcuda.so.1", True, "from LD_LIBRARY_PATH"),
        ("/usr/local/cuda/compat/libcuda.so.1", False, "/etc/ld.so.conf.d"),
    ],
)
def test_driver_check_removes_a_folder_from_where_it_is_named(
    monkeypatch: MonkeyPatch, path: str, on_path: bool, words: str
) -> None:
    folder = os.path.dirname(path)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/x;{folder}" if on_path else "/x")
    (one,) = driver.judge(None, report(*answers(path=path), gpu()), Requirements())
    assert f"remove {folder} from" in one.fix
    assert words in one.fix


@pytest.mark.parametrize("program", ["bin/sh", "usr/bin/env", "lib/ld-linux-aarch64.so.1", "bin/busybox"])
def test_an_image_for_another_processor_blames_cudnn_alone(tmp_path: Path, program: str) -> None:
    image = tmp_path / "image"
    for name in (program, "lib/libz.so.1", "etc/x"):
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_bytes(make_elf(os.path.basename(name), machine=183))
    (image / "usr").mkdir(exist_ok=True)
    lib = image / "usr/lib/python3/dist-packages/nvidia/cudnn/lib"
    make_cudnn(lib, "9.27.0", system={"libz.so.1": []}, machine=62)
    wrong = [each for each in doctor.diagnose(image, run=False).findings if each.code == "foreign-machine"]
    assert {os.path.dirname(each.evidence["path"]) for each in wrong} == {str(lib)}
    assert all("is for x86-64" in each.message for each in wrong)


def test_driver_check_finds_nothing_on_a_good_gpu() -> None:
    made = report(*answers(), gpu(), CREATED)
    assert list(driver.judge(None, made, Requirements())) == []
    assert [device["arch"] for device in made.all("device")] == [90]


@pytest.mark.parametrize(
    ("asked", "severities"),
    [
        (Requirements(), ["note", "note"]),
        (Requirements(driver=True), ["error", "note"]),
        (Requirements(gpu=True), ["error", "error"]),
    ],
)
def test_driver_check_reports_an_error_when_the_missing_part_is_required(
    asked: Requirements, severities: list[str]
) -> None:
    none = {**COUNTED, "value": 0}
    made = report(NO_FILE), report(*answers(), none)  # without a driver, without a GPU
    assert [found.severity.word for run in made for found in driver.judge(None, run, asked)] == severities


def test_driver_check_names_the_driver_that_cudnn_needs() -> None:
    (old,) = driver.judge(None, report(*answers(12080), gpu()), Requirements(), 13)
    assert old.message == "the driver supports CUDA 12.8, cuDNN needs CUDA 13"
    assert "580.65.06" in old.fix


# --- limits of the process ---------------------------------------------------------------------------------


def test_files_are_hashed_where_no_thread_can_start(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_text(path)
    expected = records.sha256_of(paths)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert records.sha256_of(paths) == expected
    assert sorted(expected) == paths


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(11, "Resource temporarily unavailable"),  # RLIMIT_NPROC
        OSError(24, "Too many open files"),
        MemoryError(),
        RuntimeError("can't fork"),
        subprocess.SubprocessError("exec failed"),
        ImportError("no module fcntl"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_diagnose_keeps_findings_about_files_when_no_process_can_start(
    tmp_path: Path, monkeypatch: MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    lib = make_cudnn(tmp_path / "lib", "9.27.0").parent
    lib.chmod(0o777)
    monkeypatch.setattr(load_check, "why_not", lambda _: "")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = {each.code: each for each in doctor.diagnose(lib).findings}
    assert found.keys() - {"other-cudnn"} == {"not-probed", "world-writable"}
    assert found["not-probed"].message.removeprefix("cannot start a child process: ") in (
        str(error),
        "MemoryError",
    )
    assert "ulimit" in found["not-probed"].fix
    strict = doctor.diagnose(lib, Requirements(gpu=True))
    assert strict.exit_code() == 1


@pytest.mark.parametrize("lacks", ["os", "the kernel", "os and ctypes", "os and the C library"])
def test_files_in_memory_need_no_memfd_create(monkeypatch: MonkeyPatch, lacks: str) -> None:
    def fails(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    if lacks == "the kernel":
        monkeypatch.setattr(os, "memfd_create", fails)
    else:
        monkeypatch.delattr(os, "memfd_create")
    if lacks == "os and ctypes":
        monkeypatch.setitem(sys.modules, "ctypes", None)
    if lacks == "os and the C library":
        monkeypatch.setattr(_files, "_memfd_create", lambda: None)
    with os.fdopen(_files.in_memory("x"), "r+b") as file:
        file.write(b"x")


@pytest.mark.parametrize(
    ("limit", "reason", "code"),
    [
        (0, "", ""),  # none
        (1 << 40, "", ""),
        (100, "", "memory-limit"),
        (1 << 40, "cannot create shared object descriptor: Cannot allocate memory", "memory-limit"),
        (1 << 40, "failed to map segment from shared object", "memory-limit"),
        (0, "failed to map segment from shared object", ""),  # of a file system with noexec
    ],
)
def test_load_check_names_the_limit_of_the_address_space(
    found: libraryset.LibrarySet, monkeypatch: MonkeyPatch, limit: int, reason: str, code: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit or -1, limit or -1))
    made = report(
        *good(found, finalize={"status": 1008 if reason else 0}),
        refusals=((f"{found.folder}/libcudnn_adv.so.9", reason),) if reason else (),
    )
    findings = [*companions.check_memory(found), *load_check.judge(found, made)]
    limits = [each for each in findings if each.code == "memory-limit"]
    assert [each.code for each in limits] == [code][: bool(code)]
    assert all("ulimit -v" in each.fix for each in limits)
    failed = [each.fix for each in findings if each.code == "finalize-failed"]
    if reason and code:
        assert failed == ["see memory-limit"]


# --- other packages and libraries --------------------------------------------------------------------------


def test_known_bad_reports_versions_and_combinations(found: libraryset.LibrarySet, tmp_path: Path) -> None:
    assert list(packages.known_bad(found)) == []
    assert ["for CUDA 13" in each.fix for each in packages.known_bad(found, "12.9.1", (100,))] == [True]
    assert list(packages.known_bad(found, "13.2.0", (100,))) == []
    make_cudnn(tmp_path / "old", "9.10.0")
    old = read(tmp_path / "old")
    assert len(list(packages.known_bad(old))) == 1
    assert len(list(packages.known_bad(old, "12.9.1", (), 2))) == 2


def test_known_defects_are_those_of_the_version_and_the_gpus(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "old", "9.23.1")
    found = read(tmp_path / "old")
    everywhere, here = packages.known_defects(found), packages.known_defects(found, [86, 90])
    assert len(everywhere) > len(here) > 0
    assert {row["name"] for row in everywhere} >= {
        "conv-engine-5",
        "attention-mxfp8",
        "attention-decode-blackwell",
    }
    names = {row["name"] for row in here}
    assert "conv-engine-5" in names
    assert "attention-decode-blackwell" not in names
    make_cudnn(tmp_path / "new", "9.24.0")
    assert "conv-engine-5" not in {row["name"] for row in packages.known_defects(read(tmp_path / "new"))}


def installed(tmp_path: Path, package: str, metadata: str = "Name: x\n") -> libraryset.LibrarySet:
    """Return a cuDNN in a site-packages with another package."""
    (tmp_path / f"{package}.dist-info").mkdir()
    (tmp_path / f"{package}.dist-info/METADATA").write_text(metadata)
    return read(make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.27.0").parent)


JAX = "nvidia-cudnn-cu12<10.0,>=9.{}.0.46; extra == 'with-cuda' and sys_platform == 'linux'"
PINNED = "nvidia-cudnn-cu12==9.{}.0.42; platform_machine == 'x86_64' or platform_system == 'Linux'"


@pytest.mark.parametrize(
    ("package", "needs", "good"),
    [
        ("onnxruntime_gpu-1.18.0", "", False),
        ("onnxruntime_gpu-1.22.0", "", True),
        ("tensorflow-2.17.0", "", False),
        ("tensorflow-2.19.0", "", True),
        ("ctranslate2-4.4.0", "", False),
        ("ctranslate2-4.6.0", "", True),
        ("cupy_cuda12x-13.6.0", "", False),
        ("cupy_cuda12x-14.0.0", "", True),  # without cuDNN
        ("nvidia_cudnn_frontend-1.18.0", "", True),  # supports all versions since 8.5
        ("jax_cuda12_plugin-0.6.2", JAX.format(27), True),
        ("jax_cuda12_plugin-0.6.2", JAX.format(28), False),
        ("jax_cuda13_plugin-0.7.0", JAX.format(28).replace("linux", "win32"), True),
        ("torch-2.9.0", PINNED.format(27), True),
        ("torch-2.9.0", PINNED.format(10), False),
        ("torch-2.9.0", PINNED.format(10).replace(" or ", " and python_version < '3' and "), True),
        ("torch-2.9.0", "nvidia_cudnn.cu12 (>=9, <9.20)", False),
        ("torch-2.9.0", f"numpy\n\nRequires-Dist: {PINNED.format(10)}", True),  # its description
        ("~orch-2.9.0", PINNED.format(10), True),  # pip was interrupted
    ],
)
def test_check_dependents_reports_unmet_needs(tmp_path: Path, package: str, needs: str, good: bool) -> None:
    found = installed(tmp_path, package, f"Name: x\nRequires-Dist: {needs}\n")
    owner = records.Distribution("nvidia-cudnn-cu12", "9.27.0.42", {})
    found = replace(found, owners=(owner,), needs=tuple(packages.needs(found)))
    assert (list(packages.check_dependents(found)) == []) is good


def test_check_dependents_notes_a_package_of_which_a_part_uses_cudnn(tmp_path: Path) -> None:
    found = installed(tmp_path, "cupy_cuda12x-13.6.0")
    found = replace(found, needs=tuple(packages.needs(found)))
    (note,) = packages.check_dependents(found)
    assert note.severity == Severity.NOTE
    assert (
        note.message
        == "cupy-cuda12x-13.6.0 needs cudnn >=8,<9, not nvidia-cudnn-cu12 9.27.0, for a part of it"
    )
    assert doctor.diagnose(tmp_path, run=False).exit_code(Severity.WARNING) == 0


def test_check_records_combines_many_files(tmp_path: Path) -> None:
    found = installed(tmp_path, "x-1")
    files = [f"nvidia/cudnn/include/{number}.h" for number in range(9)]
    files += [f"nvidia/cudnn/lib/{library.file}" for library in found.libraries.values()]
    owner = records.Distribution("x", "1", dict.fromkeys(files, ("", 1)))
    findings = said(packages.check_records(replace(found, owners=(owner,))))
    assert {code: message.partition(str(tmp_path))[0] for code, message in findings.items()} == {
        "missing-file": "9 files of x 1 do not exist, such as ",
        "altered-file": "10 files differ from those that x 1 installed, such as ",
    }


def needing(found: libraryset.LibrarySet, versions: Any = (), **changes: Any) -> libraryset.LibrarySet:
    """Return the libraries with other headers of libcudnn."""
    shim = found.libraries[""]
    elf = replace(shim.elf, **changes)
    vars(elf)["symbols"] = shim.elf.symbols._replace(versions=frozenset(versions))
    return replace(found, libraries={**found.libraries, "": replace(shim, elf=elf)})


@pytest.mark.parametrize(
    ("have", "needs", "code"),
    [
        ("", {"GLIBC_2.27"}, "no-glibc"),
        ("glibc 2.17", {"GLIBC_2.2.5", "GLIBC_2.27", "GLIBCXX_3.4.22"}, "old-glibc"),
        ("glibc 2.9", {"GLIBC_2.17"}, "old-glibc"),
        ("glibc 2.27", {"GLIBC_2.27", "GLIBC_2.3.4", "GLIBC_PRIVATE"}, ""),
        ("glibc 2.27", set(), ""),
    ],
)
def test_check_libc_compares_the_glibc_version(
    found: libraryset.LibrarySet, monkeypatch: MonkeyPatch, have: str, needs: set[str], code: str
) -> None:
    monkeypatch.setattr(_elf, "glibc_version", lambda: have)
    given = {each.code for each in companions.check_libc(needing(found, needs))}
    assert given == ({code} if code else set())
    assert bool(load_check.why_not(found)) == (not have)


@pytest.mark.parametrize(
    ("file", "versions", "expected"),
    [
        ("usr/lib/libc.so.6", ["GLIBC_2.2.5", "GLIBC_2.17"], ["old-glibc"]),
        ("usr/lib/libc.so.6", ["GLIBC_2.9", "GLIBC_2.27", "GLIBC_PRIVATE"], []),
        ("usr/lib/ld-musl-x86_64.so.1", ["x"], ["no-glibc"]),
        ("usr/lib/libx.so", ["x"], []),  # an image of which only some folders were copied
    ],
)
def test_check_libc_reads_the_c_library_of_an_image(
    found: libraryset.LibrarySet, tmp_path: Path, file: str, versions: list[str], expected: list[str]
) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "lib").symlink_to("/usr/lib")  # of the image, not of this machine
    (tmp_path / file).write_bytes(make_defining(*versions))
    image = replace(needing(found, {"GLIBC_2.27"}), root=str(tmp_path))
    assert [each.code for each in companions.check_libc(image)] == expected


def test_check_companions_reports_system_libraries_of_an_image_and_the_misspelt_folder(
    found: libraryset.LibrarySet, tmp_path: Path
) -> None:
    misspelt = ("$ORIGIN", "$ORIGIN/../../nvidia/nvrtc/lib", "$ORIGIN/../../other/lib")
    wants = needing(found, ["ZLIB_1.2.9"], needed=("libz.so.1", "libc.so.6"), runpath=misspelt)
    path = tmp_path / "usr/lib/libz.so.1"
    path.parent.mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    for data, fixes in (
        (None, ["install the package that contains libz.so.1"]),
        (None, ["install zlib1g: apt-get update && apt-get install -y zlib1g"]),
        (b"", ["install zlib1g again: apt-get update && apt-get install -y --reinstall zlib1g"]),
        (make_defining("ZLIB_1.2.0"), ["use a newer base image"]),
        (make_defining("ZLIB_1.2.0", "ZLIB_1.2.9"), []),
        (SOUND, []),  # the linker accepts a library without versions
    ):
        if data is not None:
            path.write_bytes(data)
        findings = list(companions.check(replace(wants, root=str(tmp_path))))
        (tmp_path / "usr/bin/apt-get").touch()
        assert [each.advice.partition(";")[0] for each in findings if each.code != "dead-runpath"] == fixes
        dead = [each.message for each in findings if each.code == "dead-runpath"]
        assert [message.count("nvidia/nvrtc/lib") for message in dead] == [1]


def test_check_access_reports_a_noexec_mount(found: libraryset.LibrarySet, monkeypatch: MonkeyPatch) -> None:
    for flags, bad in ((os.ST_NOSUID, False), (os.ST_NOSUID | os.ST_NOEXEC, True)):
        monkeypatch.setattr(os, "statvfs", lambda path, flags=flags: SimpleNamespace(f_flag=flags))
        assert ("noexec-mount" in said(checks.check_access(found))) is bad


def test_check_headers_notes_headers_on_the_include_path(
    found: libraryset.LibrarySet, tmp_path: Path
) -> None:
    make_header(tmp_path / "home/include/cudnn_version.h", "9.1.0")
    home, path = str(tmp_path / "home"), f"/nowhere::{tmp_path}/home/include"
    places_told = [{"CUDNN_PATH": home}, *({name: path} for name in search.INCLUDES)]
    for environ in places_told:
        (other,) = search.check_headers(found, environ)
        assert (other.code, other.evidence["version"]) == ("other-header", "9.1.0")


LT, NVRTC, BUILTINS, CUDART = "cublasLt.so.99", "nvrtc.so.99", "nvrtc-builtins.so.99.1", "cudart.so.99"
SOUND, FOREIGN = make_elf(), make_elf(machine=3)  # without a name


# A library, its contents (None is a link to nothing), the findings, and sound libraries that follow it.
OPENED: list[tuple[str, bytes | None, str, list[str]]] = [
    (LT, SOUND, "", [NVRTC, BUILTINS]),
    (LT, b"", "damaged-library error", [NVRTC, BUILTINS]),
    (LT, SOUND[:300], "damaged-library error", [LT, NVRTC, BUILTINS]),
    (LT, FOREIGN, "foreign-machine error", [NVRTC, BUILTINS]),
    (LT, FOREIGN, "", [LT, NVRTC, BUILTINS]),  # the linker skips it
    (LT, make_elf("libcublasLt.so.98"), "wrong-library error", [LT, NVRTC, BUILTINS]),
    (LT, make_elf("libcublas.so.99"), "wrong-library error", [NVRTC, BUILTINS]),
    (LT, make_elf(f"lib{LT}"), "", [NVRTC, BUILTINS]),
    (LT, None, "broken-link error", [NVRTC, BUILTINS]),
    (LT, None, "", [LT, NVRTC, BUILTINS]),
    (NVRTC, b"", "damaged-library warning", [LT]),
    (BUILTINS, b"<html>", "damaged-library warning", [LT, NVRTC]),
    (CUDART, b"", "damaged-library warning", [LT, NVRTC, BUILTINS]),
    ("no cudart.so", None, "missing-cudart warning", [LT, NVRTC, BUILTINS]),
    (NVRTC, SOUND, "missing-nvrtc warning", [LT]),  # without its builtins
    (CUDART, SOUND, "missing-cublaslt error, missing-nvrtc warning", []),
    ("nvrtc-builtins.so.11.8", SOUND, "", ["cublasLt.so.11", "nvrtc.so.11.2"]),
]


@pytest.mark.parametrize(
    ("version", "without", "expected"),
    [
        ("9.20.0", ["ext", "engines_tensor_ir"], {"missing-cublaslt": "error", "missing-nvrtc": "warning"}),
        ("9.27.0", ["ext"], {"missing-cublaslt": "error"}),
        ("9.27.0", [], {"missing-cublaslt": "error", "missing-nvrtc": "note"}),  # for causal convolutions
        ("9.20.0", NOT_JIT, {"missing-nvrtc": "warning"}),
        ("9.27.0", NOT_JIT, {}),
    ],
)
def test_check_companions_reports_what_this_cudnn_needs(
    tmp_path: Path, monkeypatch: MonkeyPatch, version: str, without: list[str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(libraryset.LibrarySet, "cuda", 99)
    found = read(make_cudnn(tmp_path / "lib", version, without=without).parent)
    assert {each.code: each.severity.word for each in companions.check(found, {})} == expected


@pytest.mark.parametrize("row", OPENED)
def test_check_companions_reads_the_file_that_the_linker_opens(
    old: libraryset.LibrarySet, tmp_path: Path, monkeypatch: MonkeyPatch, row: Any
) -> None:
    found = old
    name, data, expected, sound = row
    if "cudart" in expected or name == CUDART:
        found = replace(found, others=(Need("nvidia-cuda-runtime", "", "torch-2.9"),))
    monkeypatch.setattr(libraryset.LibrarySet, "cuda", 11 if "11" in name else 99)
    last = tmp_path / ("first" if "builtins" in name else "last")
    for folder in {tmp_path / "first", last}:
        folder.mkdir()
        (folder / "libnvrtc-builtins_static.a").touch()
    for each in sound:
        (last / f"lib{each}").write_bytes(SOUND)
    path = tmp_path / f"first/lib{name}"
    path.symlink_to("gone") if data is None else path.write_bytes(data)
    findings = list(companions.check(found, {"LD_LIBRARY_PATH": f"{path.parent}:{last}"}))
    assert ", ".join(f"{each.code} {each.severity.word}" for each in findings) == expected
    assert not any(each.code == "damaged-library" for each in companions.check(found, {}))
    image = replace(found, root=str(tmp_path))  # its environment may name the folder
    assert {each.severity.word for each in companions.check(image)} == {"warning"}


@pytest.mark.parametrize(("version", "good"), [("99.1.105", True), ("99.2.7", False)])
def test_check_companions_compares_the_versions_of_libnvrtc_and_its_builtins(
    found: libraryset.LibrarySet, tmp_path: Path, monkeypatch: MonkeyPatch, version: str, good: bool
) -> None:
    monkeypatch.setattr(libraryset.LibrarySet, "cuda", 99)
    for name in (f"nvrtc.so.{version}", BUILTINS, LT):
        (tmp_path / f"lib{name}").write_bytes(SOUND)
    (tmp_path / f"lib{NVRTC}").symlink_to(f"libnvrtc.so.{version}")
    messages = [each.message for each in companions.check(found, {"LD_LIBRARY_PATH": str(tmp_path)})]
    assert good == (not messages)
    assert good or messages[0].endswith(
        "libnvrtc-builtins.so.99.2, which is not in its folder, which has libnvrtc-builtins.so.99.1"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{own}:{other}", ["other-cudnn note"]),
        ("{link}:{other}", ["other-cudnn note"]),
        ("{links}", []),
        ("{other}:{own}", ["shadowed error"]),
        ("{other}", ["shadowed error"]),
        (":{same}:{own}", ["shadowed warning"]),
        ("{eight}", ["other-cudnn note"]),  # libcudnn.so.8 is never opened
        ("{alone}:{own}", ["other-cudnn note"]),  # the parts are those of its own
        ("{part}:{own}", ["shadowed error"]),
    ],
)
def test_check_competition_reports_folders_before_its_own(
    tmp_path: Path, path: str, expected: list[str]
) -> None:
    versions = {"own": "9.27.0", "other": "9.19.0", "same": "9.27.0"}
    folders = {name: make_cudnn(tmp_path / name, version).parent for name, version in versions.items()}
    (tmp_path / "link").symlink_to(folders["own"])
    (tmp_path / "eight").mkdir()
    (tmp_path / "eight/libcudnn.so.8").touch()
    for name, file in (("alone", "libcudnn.so.9"), ("part", "libcudnn_ops.so.9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes((folders["other"] / file).read_bytes())
    (tmp_path / "links").mkdir()
    for library in folders["own"].iterdir():
        (tmp_path / "links" / library.name).symlink_to(library)
    more = {name: tmp_path / name for name in ("link", "links", "eight", "alone", "part")}
    path = path.format(**folders, **more)
    findings = search.check_competition(read(folders["own"]), {"LD_LIBRARY_PATH": path})
    told = [each for each in findings if each.code != "other-cudnn" or each.evidence["path"] in path]
    assert [f"{each.code} {each.severity.word}" for each in told] == expected


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder with a cuDNN and other files; another cuDNN is installed."""
    shim = make_cudnn(tmp_path / "set/lib", "9.27.0")
    make_cudnn(tmp_path / "site/nvidia/cudnn/lib", "9.27.0")
    (shim.parent / "notes.py").write_text("import this")
    (tmp_path / "else.so").symlink_to(shim)
    (tmp_path / "empty").mkdir()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/c.so").write_bytes(make_elf("libcudnn.so.9"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("set", ""),
        ("set/lib", ""),
        ("set/lib/libcudnn.so.9", ""),
        ("else.so", ""),
        ("set/lib/libcudnn_ops.so.9", "libcudnn_ops.so.9 is libcudnn_ops.so.9, not libcudnn.so.9"),
        ("set/lib/libcudnn.so.9.99", "does not exist"),
        ("set/lib/notes.py", "notes.py is not an ELF library"),
        ("no/libcudnn.so.9", "does not exist"),
        ("empty", "contains no cuDNN"),
        ("alone/c.so", "contains no cuDNN"),
    ],
)
def test_diagnose_follows_the_setting_as_the_loader_does(
    setting: Path, monkeypatch: MonkeyPatch, named: str, words: str
) -> None:
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(setting / named))
    monkeypatch.setattr(config, "library", str(setting / named))
    found = doctor.diagnose(run=False)
    wrong = [each for each in found.findings if each.code == "wrong-setting"]
    folder = str((setting / "set/lib").resolve())
    if not words:
        assert ([each.folder for each in found.sets], wrong) == ([folder], [])
        assert require(find_cudnn()).folder == folder
        return
    assert (found.sets, found.exit_code(), list(found.findings)) == ((), 1, wrong)
    assert wrong[0].severity.word == "error"
    assert words in wrong[0].message
    assert wrong[0].fix == "unset or correct CUDNN_CT_LIBRARY"
    with pytest.raises(CudnnError):
        require(find_cudnn())


def test_diagnose_advises_no_reinstallation_when_another_cudnn_comes_first(
    found: libraryset.LibrarySet, monkeypatch: MonkeyPatch
) -> None:
    def check(judged: libraryset.LibrarySet, _: float) -> tuple[list[Finding], Report]:
        made = report(*good(judged, finalize={"status": 1008}))
        return list(load_check.judge(judged, made)), made

    monkeypatch.setattr(load_check, "check", check)
    monkeypatch.setattr(load_check, "why_not", lambda _: "")
    for path in ("", str(make_cudnn(Path(found.folder, "../other"), "9.19.0").parent)):
        monkeypatch.setenv("LD_LIBRARY_PATH", path)
        findings = doctor.diagnose(found.folder).findings
        (failed,) = [each for each in findings if each.code == "finalize-failed"]
        assert (failed.fix == "see shadowed") == bool(path)


def test_checks_report_stray_and_misnamed_libraries(tmp_path: Path) -> None:
    """A damaged constant may be a version that has none of the libraries."""
    make_cudnn(tmp_path, "8.0.0")
    (tmp_path / "libcudnn_ops.so.9").write_bytes(make_elf("libcudnn_cnn.so.9"))
    found = read(tmp_path)
    assert found.version == (8, 0, 0)
    given = {each.code for check in checks.CHECKS for each in check(found)}
    assert {"stray-library", "wrong-library"} <= given


@pytest.mark.parametrize(
    ("version", "opened"), [("9.27.0", True), ("", True), ("9", True), ("9.26.0", False), ("9.27", False)]
)
def test_doctor_and_loader_accept_a_part_by_the_names_that_cudnn_searches_for(
    tmp_path: Path, version: str, opened: bool
) -> None:
    shim = make_cudnn(tmp_path, "9.27.0")
    name = f"libcudnn_ops.so{version and '.'}{version}"
    (tmp_path / "libcudnn_ops.so.9").rename(tmp_path / name)
    assert (inspect(shim).problems == ()) is opened
    missing = [each.message for each in checks.check_complete(read(tmp_path))]
    told = f"libcudnn_ops.so.9 is not in {tmp_path}, and cuDNN 9.27.0 does not search for {name}"
    assert missing == ([] if opened else [told])


@pytest.mark.parametrize(
    ("target", "soname", "exports", "code"),
    [
        ("libcudnn.so.9.27.0", "libcudnn.so.9", (), "lost-link"),
        ("libcudnn.so.9.10.2", "libcudnn.so.9", (), "missing-library"),
        ("libcudnn.so.8", "libcudnn.so.8", (), "missing-library"),
        ("libcudnn.so.8.9.7", "libcudnn.so.8", (), "missing-library"),
        ("", "libcudnn.so.9", (), "lost-link"),
        ("", "libcudnn.so.8", (), "missing-library"),
        ("", "libcudnn.so.9", ("cudnnOther",), "missing-library"),
        ("libcudnn.so.9", None, (), "missing-library"),  # a link to nothing
    ],
)
def test_lost_link_is_reported_only_when_its_target_is_the_libcudnn_of_the_set(
    tmp_path: Path, target: str, soname: str | None, exports: tuple[str, ...], code: str
) -> None:
    make_cudnn(tmp_path, "9.27.0").unlink()
    if target:
        (tmp_path / "libcudnn.so").symlink_to(target)
    if soname:
        (tmp_path / (target or "libcudnn.so")).write_bytes(
            make_elf(soname, constants=dict.fromkeys(exports, 1))
        )
    found = read(tmp_path)
    given = [each for check in checks.CHECKS for each in check(found)]
    given = [each for each in given if each.code in ("lost-link", "missing-library", "wrong-library")]
    assert [each.code for each in given] == [code]
    links = (f"ln -sf {found.shim and Path(found.shim).name} {tmp_path}/libcudnn.so.9",)
    assert given[0].commands == (links if code == "lost-link" else ())


def test_lost_link_leaves_out_libraries_of_other_versions(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0", ops="9.10.2")
    (tmp_path / "libcudnn_cnn.so.9").write_bytes(make_elf("libcudnn_adv.so.9"))
    for part in ("", "_ops", "_cnn", "_adv"):
        (tmp_path / f"libcudnn{part}.so.9").rename(tmp_path / f"libcudnn{part}.so")
    (lost,) = checks.check_links(read(tmp_path))
    linked = [command.rpartition("/")[2] for command in lost.commands]
    assert linked == ["libcudnn.so.9", "libcudnn_adv.so.9"]


def test_a_development_link_of_cudnn_8_is_not_a_defect(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0")
    (tmp_path / "libcudnn.so.8").write_bytes(make_elf("libcudnn.so.8"))
    (tmp_path / "libcudnn.so").symlink_to("libcudnn.so.8")
    findings = doctor.diagnose(tmp_path, run=False).findings
    assert not {"wrong-library", "missing-library", "lost-link"} & {each.code for each in findings}


def test_diagnose_links_the_libraries_of_a_copy_without_versions(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    copy, sound = tmp_path / "copy/lib", make_cudnn(tmp_path / "sound", "9.26.0")
    names = [path.rename(path.with_suffix("")).name for path in make_cudnn(copy).parent.glob("*.so.9")]
    for path in (copy, copy.parent, copy / "libcudnn.so"):
        diagnosis = doctor.diagnose(path, run=False)
        (lost,) = [each for each in diagnosis.findings if each.severity.word == "error"]
        made = {f"ln -sf {name} {copy}/{name}.9" for name in names}
        assert (lost.code, set(lost.commands)) == ("lost-link", made)
    environ = {"LD_LIBRARY_PATH": f"{copy}:{sound.parent}"}
    order = [place.folder for place in locate.usual(environ, []).found]
    assert order.index(str(sound.parent)) < order.index(str(copy))  # as programs do not find the copy
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(copy))
    assert [each.folder for each in doctor.diagnose(run=False).sets] == [str(copy)]
    for command in lost.commands:
        subprocess.run(command, shell=True, check=True)
    assert not [each for each in doctor.diagnose(copy, run=False).findings if each.severity.word == "error"]


def test_a_development_file_of_another_cudnn_is_not_a_cudnn(tmp_path: Path) -> None:
    (tmp_path / "libcudnn_graph.so").write_bytes(make_elf("libcudnn_graph.so.10"))
    (tmp_path / "libcudnn_ops.so").symlink_to(make_cudnn(tmp_path / "else").parent / "libcudnn_ops.so.9")
    assert libraryset.read(str(tmp_path)) is None


# --- the table of codes ------------------------------------------------------------------------------------

SOURCES = sorted(Path(doctor.__file__).parent.glob("*.py"))


def test_every_code_of_the_table_is_used() -> None:
    texts = {
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    errors = json.loads(_files.resource("cudnn_doctor/cuda_errors.json")).values()
    missing = {row.missing for row in CUDA.values()}
    assert set(codes()) <= texts | missing | {row["code"] for row in errors}


def test_finding_fills_the_template_of_the_fix() -> None:
    for code in ("no-such-code", "private-file"):  # the second has a template that needs a path
        with pytest.raises(KeyError):
            finding(code, "x")
    private = finding("private-file", "x", path="/a b")
    assert (private.fix, private.commands) == ("let all users read /a b", ("chmod a+rX '/a b'",))
    inside = finding("private-file", "x", path="/a", fix={"path": "/b"})
    assert inside.advice == "let all users read /b: chmod a+rX /b"


@pytest.mark.parametrize(("others", "stray"), [(("adv",), False), (("adv", "ops"), True)])
def test_a_library_is_not_stray_by_the_version_of_one_other(others: tuple[str, ...], stray: bool) -> None:
    """That one may be the foreign library, and the doctor's command would delete the right one."""
    engine = Library("engines_tensor_ir", "/lib/libcudnn_engines_tensor_ir.so.9", "")
    parts = {name: Library(name, f"/lib/libcudnn_{name}.so.9", "", version=(9, 20, 0)) for name in others}
    found = LibrarySet("/lib", {engine.name: engine, **parts})
    assert found.is_stray(engine) is stray
    assert found.leftovers == ((engine.path,) if stray else ())


@pytest.mark.parametrize("name", ["libcudnn_ops.so", "libcudnn_ops.so.9.27.0"])
def test_library_that_others_are_linked_with_needs_the_name_of_the_link(tmp_path: Path, name: str) -> None:
    """cuDNN opens the other name itself; a process that opens libcudnn_cnn first does not."""
    make_cudnn(tmp_path)
    (tmp_path / "libcudnn_cnn.so.9").write_bytes(make_elf("libcudnn_cnn.so.9", ["libcudnn_ops.so.9"]))
    assert not list(checks.check_needed(read(tmp_path)))
    (tmp_path / "libcudnn_ops.so.9").rename(tmp_path / name)
    (lost,) = checks.check_needed(read(tmp_path))
    assert lost.code == "lost-link"
    assert lost.commands == (f"ln -sf {name} {tmp_path}/libcudnn_ops.so.9",)
    assert not list(checks.check_complete(read(tmp_path)))


@pytest.mark.parametrize("named", ["libcudnn.so.8", "."])
def test_setting_that_names_an_older_cudnn_is_the_cause(
    tmp_path: Path, monkeypatch: MonkeyPatch, named: str
) -> None:
    (tmp_path / "libcudnn.so.8").write_bytes(make_elf("libcudnn.so.8"))
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(tmp_path / named))
    found = doctor.diagnose(run=False)
    assert [each.code for each in found.findings] == ["wrong-setting"]
    assert found.findings[0].message.endswith("is cuDNN 8")


def test_folder_that_an_interrupted_pip_left_is_skipped(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "nvidia/cudnn/lib")
    make_cudnn(tmp_path / "nvidia/~udnn/lib", without=["graph"])

    def found() -> list[str]:
        return [Path(place.folder).parent.name for place in locate.named(str(tmp_path)).found]

    assert found() == ["cudnn", "~udnn"]  # pip has installed nothing here
    (tmp_path / "pip-26.0.dist-info").mkdir()
    assert found() == ["cudnn"]
