"""Query the NVIDIA driver and the GPUs in a child process, and compare them with a cuDNN."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from . import checks, companions, sandbox
from .checks import Requirements
from .finding import Finding, Fix, Severity, finding
from .libraryset import LibrarySet
from .read import files as _files
from .sandbox import Report

# The oldest driver, and the CUDA version that it reports, for each CUDA major version.
OLDEST = {11: ("450.80.02", 11000), 12: ("525.60.13", 12000), 13: ("580.65.06", 13000)}

MIN_FREE = 512 << 20  # bytes: approximately a cuDNN handle and its workspace

WSL = "/usr/lib/wsl/lib"  # where the Windows Subsystem for Linux has the libraries of the driver
_WSL_MARK = "/dev/dxg"  # the device of the GPU there
_WSL_ADVICE = f"install the driver on Windows, not inside WSL, and let the linker search {WSL}"
_WSL_COMMANDS = (f"echo {WSL} > /etc/ld.so.conf.d/ld.wsl.conf", "ldconfig")

COPIES = "install the driver that belongs to the kernel module, and remove other copies of its libraries"


def check(
    found: LibrarySet | None, asked: Requirements, timeout: float, cuda: int = 0
) -> tuple[list[Finding], Report]:
    """Query the driver, and create a handle if there is a sound cuDNN; ``cuda`` is that of another one."""
    shim = found.shim if found else ""
    name = f"libcublasLt.so.{found.cuda}" if found else ""
    plan = {"mode": "driver", "shim": shim, "cublaslt": companions.find(found, name) if found else ""}
    (report,) = sandbox.run([(plan, {})], timeout)
    return list(judge(found, report, asked, cuda)), report


def judge(found: LibrarySet | None, report: Report, asked: Requirements, cuda: int = 0) -> Iterator[Finding]:
    """Return the findings from a query of the driver."""
    needed = Severity.ERROR if asked.driver or asked.gpu else None
    unanswered = Severity.WARNING if needed is None else needed  # ERROR is 0
    driver = report.last("driver")
    if report.ended == "refused":
        yield sandbox.not_started(report, unanswered)
    elif report.ended == "hung":
        text = f"the driver did not return from {report.reached} within {report.seconds:.1f} s"
        yield finding("probe-hung", text, step=report.reached, repair=Fix("see nvidia-smi"))
    elif not driver and report.ended != "done":
        yield _killed("driver-broken", report)
    elif driver.get("error"):
        yield from _no_library(str(driver["error"]), needed)
    elif report.ended == "done" and (lost := _lost(found, report)):
        yield sandbox.lost_answer(lost, unanswered)
    else:
        yield from _answers(found, report, asked, found.cuda if found else cuda)


def _lost(found: LibrarySet | None, report: Report) -> str:
    """Return the first call without an answer in the report of a child that ended; empty if none."""
    status, count, devices = report.last("init").get("status"), report.last("count"), report.all("device")
    expected = count.get("value", len(devices)) if not count.get("status") else 0
    tried = found and found.shim and devices
    created = not tried or report.all("create") or report.last("load").get("error")
    answers = (
        ("dlopen libcuda.so.1", bool(report.last("driver"))),
        ("cuDriverGetVersion", bool(report.last("driver_version"))),
        ("cuInit", status is not None),
        ("cuDeviceGetCount", status != 0 or bool(count) or bool(devices)),
        ("cuDevicePrimaryCtxRetain", status != 0 or len(devices) == expected),
        ("cudnnCreate", status != 0 or bool(created)),
    )
    return next((name for name, answered in answers if not answered), "")


def describe(report: Report) -> dict[str, Any]:
    """Return the details of the driver, for programs."""
    return {
        "ended": report.ended,
        "library": report.last("driver").get("path"),
        "release": _files.driver_release(),
        "cuda": report.last("driver_version").get("value"),
        "init": report.last("init").get("status"),
        "devices": [
            {name: value for name, value in row.items() if name != "step"} for row in report.all("device")
        ],
    }


def _killed(code: str, report: Report) -> Finding:
    words = f": {report.words}" if report.words else ""
    text = f"{report.reached} killed a process with {report.ended}{words}"
    fix = {"advice": COPIES} if code == "driver-broken" else None
    return finding(code, text, fix=fix, signal=report.ended)


def _no_library(error: str, needed: Severity | None) -> Iterator[Finding]:
    if "No such file" in error or "cannot open shared object" in error:
        release = _files.driver_release()
        inside = f", though the kernel module {release} is loaded" if release else ""
        wsl = os.path.exists(_WSL_MARK)
        advice = _WSL_ADVICE if wsl else "docker run --gpus all ..., or install the driver"
        present = os.path.exists(f"{WSL}/libcuda.so.1")
        where = f": the linker does not search {WSL}, which has it" if wsl and present else " does not exist"
        commands = _WSL_COMMANDS if wsl and present else ()
        shown: dict[str, Any] = {"severity": needed, "fix": {"advice": advice}, "commands": commands}
        yield finding("no-driver", f"libcuda.so.1{where}{inside}", reason=error, **shown)
    else:
        yield finding("driver-broken", error, fix={"advice": COPIES}, reason=error)


def _answers(found: LibrarySet | None, report: Report, asked: Requirements, cuda: int) -> Iterator[Finding]:
    path = str(report.last("driver")["path"])
    stub = report.last("init").get("status") == 34 or "/stubs/" in path
    if stub:
        yield finding("driver-stub", f"{path} is a stub", fix=_removal(path), path=path)
        return
    if "/compat" in path:
        yield finding("driver-compat", f"{path} is in use", fix=_removal(path), path=path)
    version = report.last("driver_version").get("value") or 0
    release, oldest = OLDEST.get(cuda, ("", 0))
    if 0 < version < oldest:
        have = f"{version // 1000}.{version % 1000 // 10}"
        text = f"the driver supports CUDA {have}, cuDNN needs CUDA {oldest // 1000}"
        yield finding("driver-too-old", text, version=version, expected=oldest, fix={"driver": release})
    status = report.last("init").get("status")
    devices = report.all("device")
    if report.ended != "done":
        yield _killed("create-failed" if report.reached == "cudnnCreate" else "driver-broken", report)
    elif status == 100 or (status == 0 and not devices and not report.last("count").get("status")):
        text = f"the driver {_files.driver_release()} shows no GPU"
        yield finding("no-gpu", text, severity=Severity.ERROR if asked.gpu else None)
    elif status:
        yield from _failed("cuInit", status, release)
    elif report.last("count").get("status"):
        yield from _failed("cuDeviceGetCount", report.last("count")["status"], release)
    for device in devices:
        yield from _device(found, device, release)
    yield from _create(report)


def _failed(call: str, status: int, release: str) -> Iterator[Finding]:
    """Report an error of the driver with its own cause and advice."""
    unknown = {"code": "driver-broken", "reason": "see nvidia-smi", "advice": COPIES}
    row = json.loads(_files.resource("cudnn_doctor/cuda_errors.json")).get(str(status), unknown)
    fix = {"advice": row["advice"], "driver": release or OLDEST[max(OLDEST)][0]}
    yield finding(row["code"], f"{call} returned {status}: {row['reason']}", fix=fix, status=status)


def _removal(path: str) -> dict[str, str]:
    """Return the fix for a library that the linker must not find."""
    folder = os.path.dirname(path)
    named = folder != "" and _files.real(folder) in map(_files.real, _files.search_path(os.environ))
    of_linker = "the linker's configuration (/etc/ld.so.conf.d), and run ldconfig"
    return {"advice": f"remove {folder} from {'LD_LIBRARY_PATH' if named else of_linker}"}


def _device(found: LibrarySet | None, device: dict[str, Any], release: str) -> Iterator[Finding]:
    name = f"GPU {device['index']} ({device['name']})"
    if found and found.version:
        yield from checks.check_arch(found, device["arch"])
    if device["status"]:
        yield from _failed(f"creating a context on {name}", device["status"], release)
    elif device["free"] < MIN_FREE:
        free, total = device["free"], device["total"]
        text = f"{name} has {free >> 20:,} of {total >> 20:,} MiB free"
        yield finding("low-memory", text, free=free, total=total)


def _create(report: Report) -> Iterator[Finding]:
    if status := report.last("create").get("status"):
        text = report.last("create")["text"]
        yield finding("create-failed", f"cudnnCreate returned {status}: {text}", status=status, text=text)
    elif report.last("load").get("error"):
        yield finding("create-failed", str(report.last("load")["error"]))
