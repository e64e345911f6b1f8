"""Query the NVIDIA driver and the GPUs in a child process, and compare them with a cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import _files
from . import companions, requirements, sandbox
from .finding import Finding, Fix, Severity, finding
from .libraryset import LibrarySet
from .requirements import Requirements
from .sandbox import Report

__all__ = ["OLDEST", "check", "describe", "judge"]

# The oldest driver, and the CUDA version that it reports, for each CUDA major version.
OLDEST = {11: ("450.80.02", 11000), 12: ("525.60.13", 12000), 13: ("580.65.06", 13000)}

MIN_FREE = 512 << 20  # bytes: approximately a cuDNN handle and its workspace
REASONS = {
    2: "out of memory",
    3: "not initialised",
    34: "the stub library",
    35: "the driver is too old",
    100: "no device",
    101: "invalid device",
    802: "the system is not ready: on NVSwitch machines nvidia-fabricmanager must run",
    803: "the kernel module and the library of the driver are of different versions",
    804: "forward compatibility is not supported on this GPU",
    999: "unknown error",
}


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
    driver = report.last("driver")
    if report.ended == "refused":
        yield sandbox.not_started(report, needed or Severity.WARNING)
    elif report.ended == "hung":
        text = f"the driver did not return from {report.reached} within {report.seconds:.1f} s"
        yield finding("probe-hung", text, step=report.reached, repair=Fix("see nvidia-smi"))
    elif not driver and report.ended != "done":
        yield _killed("driver-broken", report)
    elif driver.get("error"):
        yield from _no_library(str(driver["error"]), needed)
    else:
        yield from _answers(found, report, asked, found.cuda if found else cuda)


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
    return finding(code, text, signal=report.ended)


def _no_library(error: str, needed: Severity | None) -> Iterator[Finding]:
    if "No such file" in error or "cannot open shared object" in error:
        release = _files.driver_release()
        inside = f", though the kernel module {release} is loaded" if release else ""
        yield finding("no-driver", f"libcuda.so.1 does not exist{inside}", severity=needed, reason=error)
    else:
        yield finding("driver-broken", error, reason=error)


def _answers(found: LibrarySet | None, report: Report, asked: Requirements, cuda: int) -> Iterator[Finding]:
    path = str(report.last("driver")["path"])
    stub = report.last("init").get("status") == 34 or "/stubs/" in path
    if stub:
        yield finding("driver-stub", f"{path} is a stub", path=path)
        return
    if "/compat" in path:
        yield finding("driver-compat", f"{path} is in use", path=path)
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
    elif status == 100 or (status == 0 and not devices):
        text = f"the driver {_files.driver_release()} shows no GPU"
        yield finding("no-gpu", text, severity=Severity.ERROR if asked.gpu else None)
    elif status:
        text = f"cuInit returned {status}: {REASONS.get(status, 'see nvidia-smi')}"
        yield finding("driver-broken", text, status=status)
    for device in devices:
        yield from _device(found, device)
    yield from _create(report)


def _device(found: LibrarySet | None, device: dict[str, Any]) -> Iterator[Finding]:
    name = f"GPU {device['index']} ({device['name']})"
    if found and found.version:
        yield from requirements.check_arch(found, device["arch"])
    if device["status"]:
        status = device["status"]
        reason = REASONS.get(status, "see nvidia-smi")
        yield finding(
            "driver-broken", f"cannot create a context on {name}: {status}, {reason}", status=status
        )
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
