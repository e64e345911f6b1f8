"""Runs the probe in child processes, and brings back how far each came: a crash or a hang is a result."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _elf
from . import stub_libcuda

__all__ = ["Report", "run"]

NEEDS = "give it a folder to write to (TMPDIR), and run it by a Python that can be started again"
MAX_OUTPUT = 32 << 20  # bytes read of what a child wrote

_REQUEST = re.compile(
    r"file=libcudnn_[a-z_]+\.so\.(\d+\.\d+\.\d+) \[0\];\s+dynamically loaded by (.+) \[\d+\]$", re.M
)
_LOG = re.compile(r"[A-Za-z]! ")
_REFUSAL = re.compile(
    r"^\s*(?:\d+:\s+)*(.*libcudnn\w*\.so[.\d]*): error: (.+?)(?: \((?:fatal|continued)\))?$", re.M
)


@dataclass(frozen=True)
class Report:
    """What one child did.

    Attributes
    ----------
    steps : tuple of dict
        Its steps, in order; each has ``step`` and values.
    ended : str
        How it ended: ``done``, ``hung``, ``refused`` (it could not be started), or the name of a signal.
    seconds : float
        How long it ran.
    words : str
        The last lines that it wrote to stderr, apart from cuDNN's log.
    log : str
        The warnings of cuDNN's log.
    asked_by : dict
        For each library file that opened others: the version that it asked for.
    refusals : tuple of (str, str)
        Libraries of cuDNN that the linker could not open, and its reasons.
    """

    steps: tuple[dict[str, Any], ...]
    ended: str
    seconds: float
    words: str = ""
    log: str = ""
    asked_by: Mapping[str, str] | None = None
    refusals: tuple[tuple[str, str], ...] = ()

    def last(self, step: str) -> dict[str, Any]:
        """Return the last step of a name; empty when it was not reached."""
        return next((row for row in reversed(self.steps) if row["step"] == step), {})

    @property
    def reached(self) -> str:
        """What it was doing when it ended."""
        return str(self.last("begin").get("what", "starting"))


def run(
    plans: list[tuple[dict[str, Any], dict[str, str]]],
    timeout: float,
    driver_functions: frozenset[str] = frozenset(),
) -> list[Report]:
    """Run a child for each plan, all at once, each with its additions to the environment.

    None outlives ``timeout`` seconds. ``driver_functions`` are what the stand-in for libcuda must have.
    """
    end = time.monotonic() + timeout
    children: list[_Child] = []
    try:
        with tempfile.TemporaryDirectory(prefix="cudnn-ct-", ignore_cleanup_errors=True) as folder:
            stand_in = _write_standin(Path(folder), driver_functions)
            for number, (plan, environ) in enumerate(plans):
                place = Path(folder, str(number))
                whole = {**plan, "standin": stand_in, "parent": os.getpid()}
                children.append(_Child(place, _sent(whole), environ))
            return [child.report(end) for child in children]
    except OSError as error:  # nowhere to write, as in an image that is read-only
        return [Report((), "refused", 0.0, str(error))] * len(plans)
    finally:
        for child in children:  # when we are interrupted
            child.kill()


def _write_standin(folder: Path, functions: frozenset[str]) -> str:
    path = folder / "libcuda.so.1"
    with suppress(KeyError):
        path.write_bytes(stub_libcuda.make(functions, _elf.machine_here()))
        return str(path)
    return ""


class _Child:
    """One running probe. It writes to files: a pipe could fill up, or be kept open by what it started."""

    def __init__(self, folder: Path, plan: dict[str, Any], environ: dict[str, str]) -> None:
        folder.mkdir()
        self.folder = folder
        self.started = time.monotonic()
        self.process: subprocess.Popen[bytes] | None = None
        self.problem = ""
        script = str(Path(__file__).with_name("probe.py"))
        debug = {
            "LD_DEBUG": "files",
            "LD_DEBUG_OUTPUT": str(folder / "linker"),
            "CUDNN_LOGLEVEL_DBG": "2",  # warnings: that is where cuDNN says what it did without
            "CUDNN_LOGDEST_DBG": "stderr",
        }
        try:
            with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
                self.process = subprocess.Popen(
                    [sys.executable or "python3", "-I", "-S", script, json.dumps(plan)],
                    env={**os.environ, **(debug if plan["mode"] == "cudnn" else {}), **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=folder,  # where a core file goes, and then with the folder
                    start_new_session=True,
                )
        except OSError as error:
            self.problem = str(error)

    def report(self, end: float) -> Report:
        if self.process is None:
            return Report((), "refused", 0.0, self.problem)
        try:
            code = self.process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        steps = tuple(_steps(self._read("out")))
        err = [line.strip() for line in self._read("err").splitlines() if line.strip()]
        linker = "".join(self._read(path.name) for path in self.folder.glob("linker*"))
        return Report(
            steps,
            _ended(code, steps),
            time.monotonic() - self.started,
            " / ".join([line for line in err if not _LOG.match(line)][-3:]),
            "\n".join(line for line in err if _LOG.match(line)),
            {path: version for version, path in reversed(_REQUEST.findall(linker))},
            tuple(dict.fromkeys(_REFUSAL.findall(linker))),
        )

    def kill(self) -> None:
        """End it, with all that it started."""
        if self.process is None or self.process.returncode is not None:
            return
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that the kernel cannot end is left to it
            self.process.wait(5)

    def _read(self, name: str) -> str:
        try:
            with open(self.folder / name, "rb") as file:
                return os.fsdecode(file.read(MAX_OUTPUT))  # paths as they are known here
        except OSError:
            return ""


def _steps(text: str) -> list[dict[str, Any]]:
    steps = []
    for line in text.splitlines():
        with suppress(ValueError):  # what cuDNN itself prints
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row:
                steps.append({name: _received(value) for name, value in row.items()})
    return steps


def _sent(plan: dict[str, Any]) -> dict[str, Any]:
    """Write its paths for a child, whose locale may be another one: their bytes, read as UTF-8."""
    return {
        name: os.fsencode(value).decode("utf-8", "surrogateescape") if isinstance(value, str) else value
        for name, value in plan.items()
    }


def _received(value: Any) -> Any:
    """Decode what a child told as this process decodes paths."""
    if isinstance(value, str):
        return os.fsdecode(value.encode("utf-8", "surrogateescape"))
    return [_received(each) for each in value] if isinstance(value, list) else value


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
