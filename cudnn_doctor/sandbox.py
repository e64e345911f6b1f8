"""Run the probe in child processes, and report the steps of each; a crash or a hang is a result."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

from . import stub_libcuda
from .finding import Finding, Severity, finding
from .read import files as _files
from .search import SETTINGS

NEEDS = "raise the limits of this process (ulimit -a), or use a Python that can start child processes"

MAX_OUTPUT = 32 << 20  # bytes read of the output of a child

_REQUEST = re.compile(
    r"file=libcudnn_[a-z_]+\.so\.(\d+\.\d+\.\d+) \[0\];\s+dynamically loaded by (.+) \[\d+\]$", re.M
)

_LINKER = re.compile(r"\s*\d+:\t")
_LOG = re.compile(r"[A-Za-z]! ")
_REFUSAL = re.compile(
    r"^\s*(?:\d+:\s+)*((?=.*libcudnn).*\.so[.\d]*): error: (.+?)(?: \((?:fatal|continued)\))?$", re.M
)
# The linker logs no error for a library that it does not find, but a library that it finds has a link map.
_LOST = re.compile(r"file=(\S+) \[0\];\s+needed by .*libcudnn.* \[0\]\n(?!.*;\s+generating link map)")


@dataclass(frozen=True)
class Report:
    """The run of one child."""

    steps: tuple[dict[str, Any], ...]  # in order; each has "step" and values
    ended: str  # "done", "hung", "refused" (it could not be started), or the name of a signal
    seconds: float
    words: str = ""  # the last lines of its stderr, without cuDNN's log
    log: str = ""  # the warnings of cuDNN's log
    asked_by: Mapping[str, str] | None = None  # for each library that opened others, the requested version
    refusals: tuple[tuple[str, str], ...] = ()  # libraries of cuDNN that the linker could not open, and why
    lost: tuple[str, ...] = ()  # libraries that it did not find for a library of cuDNN

    def all(self, step: str) -> list[dict[str, Any]]:
        """Return all steps of a name."""
        return [row for row in self.steps if row["step"] == step]

    def last(self, step: str) -> dict[str, Any]:
        """Return the last step of a name; empty if it was not reached."""
        return (self.all(step) or [{}])[-1]

    @property
    def reached(self) -> str:
        """The call during which it ended."""
        return str(self.last("begin").get("what", "starting"))


def not_started(report: Report, severity: Severity) -> Finding:
    """Return the finding for a child that could not be started."""
    text = f"cannot start a child process: {report.words}"
    return finding("not-probed", text, severity=severity, fix={"advice": NEEDS})


def lost_answer(call: str, severity: Severity) -> Finding:
    """Return the finding for a child that ended without the answer of a call."""
    text = f"a child process ended without an answer of {call}"
    return finding("not-probed", text, severity=severity, fix={"advice": "run the doctor again"})


def run(
    plans: list[tuple[dict[str, Any], dict[str, str]]], timeout: float, driver_functions: Iterable[str] = ()
) -> list[Report]:
    """Run a child for each plan at the same time, each with its additions to the environment."""
    # All end within ``timeout`` seconds. ``driver_functions`` are the functions of the stub for libcuda.
    end = time.monotonic() + timeout
    children: list[_Child] = []
    try:
        # In memory: an image may have no writable folder, and tempfile imports zlib, which may be broken.
        with ExitStack() as files:
            stub = files.enter_context(os.fdopen(stub_libcuda.in_memory(driver_functions)))
            for plan, environ in plans:
                out, err = (files.enter_context(os.fdopen(_files.in_memory(n), "rb")) for n in ("out", "err"))
                children.append(_Child(plan, environ, stub.fileno(), out, err))
            return [child.report(end) for child in children]
    except _not_started() as error:
        return [Report((), "refused", 0.0, str(error) or type(error).__name__)] * len(plans)
    finally:
        for child in children:  # after an interruption
            child.kill()


def _not_started() -> tuple[type[Exception], ...]:
    """No more processes, files or memory; a system call that is forbidden; a module that a Python lacks."""
    from subprocess import SubprocessError

    return OSError, MemoryError, RuntimeError, ImportError, ValueError, SubprocessError


class _Child:
    """One running probe. It writes to files: a pipe could fill up, or be kept open by its children."""

    def __init__(
        self, plan: dict[str, Any], environ: dict[str, str], stub: int, out: IO[bytes], err: IO[bytes]
    ) -> None:
        whole = {**plan, "stub": f"/proc/self/fd/{stub}", "parent": os.getpid()}
        # As text, because the doctor may be in a zip file.
        command = [sys.executable or "python3", "-I", "-S", "-c", _files.resource("cudnn_doctor/probe.py")]
        debug = {
            "LD_DEBUG": "files",  # to stderr
            "CUDNN_LOGLEVEL_DBG": "2",  # warnings, in which cuDNN reports libraries that it could not open
            "CUDNN_LOGDEST_DBG": "stderr",
        }
        inherited = {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}
        self.out, self.err = out, err
        self.started = time.monotonic()
        import subprocess  # takes 10 ms: not for checks of files alone

        self.process = subprocess.Popen(
            [*command, json.dumps(whole, ensure_ascii=False)],  # with the bytes of paths
            env={**inherited, **(debug if plan["mode"] == "cudnn" else {}), **environ},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[stub],
            cwd="/",
            start_new_session=True,
        )

    def report(self, end: float) -> Report:
        from subprocess import TimeoutExpired

        code = None
        try:
            code = self.process.wait(max(end - time.monotonic(), 0.01))
        except TimeoutExpired:
            self.kill()
        steps = tuple(_steps(_read(self.out)))
        lines = [line for line in _read(self.err).split("\n") if line.strip()]
        err = [line.strip() for line in lines if not _LINKER.match(line)]
        linker = "\n".join(filter(_LINKER.match, lines))
        return Report(
            steps,
            _ended(code, steps),
            time.monotonic() - self.started,
            " / ".join([line for line in err if not _LOG.match(line)][-3:]),
            "\n".join(line for line in err if _LOG.match(line)),
            {path: version for version, path in reversed(_REQUEST.findall(linker))},
            tuple(dict.fromkeys(_REFUSAL.findall(linker))),
            tuple(dict.fromkeys(_LOST.findall(linker))),
        )

    def kill(self) -> None:
        """Kill it with all its children."""
        if self.process.returncode is not None:
            return
        from subprocess import TimeoutExpired

        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(TimeoutExpired):  # a process in an uninterruptible call
            self.process.wait(5)


def _read(file: IO[bytes]) -> str:
    return os.fsdecode(os.pread(file.fileno(), MAX_OUTPUT, 0))  # paths as this process decodes them


def _steps(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):  # names of files may have other characters that end a line
        with suppress(ValueError):  # a line that cuDNN printed
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row:
                yield row


def _ended(code: int | None, steps: tuple[dict[str, Any], ...]) -> str:
    if code is None:
        return "hung"
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"
    if code == 0 and steps and steps[-1]["step"] == "done":
        return "done"
    return f"exit {code}"
