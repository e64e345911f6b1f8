"""Plans convolutions for a GPU that is only described, in a child process.

cuDNN's libraries want ``libcuda.so.1`` to be opened. In the child the doctor's stand-in takes its place, also
where there is a driver, so that the answer is the same everywhere; such a process must not touch a GPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadParamError, CudnnError
from ..problem import Candidate
from .options import Convolution

__all__ = ["PlanningError", "plan", "read_description"]

SECONDS = 300.0
MOST = 1 << 20  # bytes of a description, which has one kilobyte


class PlanningError(CudnnError):
    """The child process did not answer."""


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a description of a device.

    Raises
    ------
    ValueError
        It is none; the message has the path.
    """
    try:
        with open(path, "rb") as file:
            description = json.loads(file.read(MOST + 1)[:MOST])
    except OSError as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is no description of a device: {error}") from None
    if not isinstance(description, dict) or "deviceVer" not in description:
        raise ValueError(f"{os.fspath(path)} is no description of a device: it has no deviceVer")
    return description


def plan(description: dict[str, Any], wanted: Sequence[Convolution]) -> list[list[Candidate]]:
    """List the engines that cuDNN has for convolutions on a device, best first, refused ones last.

    Raises
    ------
    BadParamError
        cuDNN refuses the description.
    CudnnError
        There is no cuDNN, or one before 9.8; or the child process did not answer.
    """
    from .. import _lib
    from .._config import config

    installation = _lib.load().installation
    file = _standin(str(installation.folder) if installation else "")
    request = {
        "device": description,
        "convolutions": [one._asdict() for one in wanted],
        "allow_tf32": config.allow_tf32,
    }
    package = str(Path(__file__).resolve().parents[2])
    environ = {
        **os.environ,
        "CUDNN_CT_LIBRARY": str(installation.shim if installation else ""),
        "LD_PRELOAD": ":".join(filter(None, [f"/proc/self/fd/{file}", os.environ.get("LD_PRELOAD")])),
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(request),
            env=environ,
            pass_fds=[file],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlanningError(f"no process can plan: {error}") from None
    finally:
        os.close(file)
    return _answer(done)


def _standin(folder: str) -> int:
    """A file in memory, so that no folder need be writable: the stand-in, with what these libraries want."""
    from ..doctor import elf, libraryset, standin

    found = libraryset.read(folder)
    libraries = found.sound if found else ()
    names = {name for library in libraries if library.dynamic for name in library.dynamic.undefined}
    made = standin.make(filter(re.compile(r"cu[A-Z]").match, names), elf.machine_here())
    file = os.memfd_create("libcuda.so.1")
    os.write(file, made)
    return file


def _answer(done: subprocess.CompletedProcess[str]) -> list[list[Candidate]]:
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        died = -done.returncode in set(signal.Signals)
        how = signal.Signals(-done.returncode).name if died else f"exit code {done.returncode}"
        words = (done.stderr.strip().splitlines() or [""])[-1]
        raise PlanningError(f"the process that plans ended with {how}{f': {words}' if words else ''}")
    told = json.loads(lines[-1])
    if "error" in told:
        raise (BadParamError if told["refused"] else CudnnError)(told["error"])
    return [[_candidate(row) for row in rows] for rows in told["rows"]]


def _candidate(row: dict[str, Any]) -> Candidate:
    candidate = Candidate(**row)
    return candidate._replace(packed=(), notes=tuple(candidate.notes))


def _child() -> None:
    from .. import graph

    request = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        planner = graph.Planner(request["device"])
        problems = [_convolution(row).problem(request["allow_tf32"]) for row in request["convolutions"]]
        rows = [graph.candidates(problem, planner) for problem in problems]
        answer = {"rows": [[row._asdict() for row in some] for some in rows]}
    except CudnnError as error:
        answer = {"error": str(error).splitlines()[0], "refused": isinstance(error, BadParamError)}
    print(f"\n{json.dumps(answer)}", flush=True)
    os._exit(0)  # destructors of libraries, on a driver that is none, are no part of the question


def _convolution(row: dict[str, Any]) -> Convolution:
    padding = row["padding"]
    if isinstance(padding, list):  # tuples do not survive JSON
        padding = tuple(tuple(one) if isinstance(one, list) else one for one in padding)
    return Convolution(**{**row, "padding": padding})


if __name__ == "__main__":
    _child()
