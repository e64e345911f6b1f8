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
from typing import Any

from ..errors import BadParamError, CudnnError, NotSupportedError, format_version
from ..plans.base import Candidate
from .errors import first_line, verdict_of
from .options import Convolution

__all__ = ["PlanningError", "answer", "plan", "read_description"]

SECONDS = 300.0
MAX_BYTES = 1 << 20  # bytes of a description, which has one kilobyte
SINCE = 90800  # what older ones say of a description would read as if the file were wrong

# The child imports what this process would: its own search path might lead to another cudnn_ct.
CHILD = "import sys; sys.path[:] = sys.argv[1:]; from cudnn_ct.cli.offline import answer; answer()"


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
            description = json.loads(file.read(MAX_BYTES + 1)[:MAX_BYTES])
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
    NotSupportedError
        This cuDNN is older than 9.8, which was the first to plan without a device.
    CudnnError
        There is no cuDNN that can be loaded, or the child process did not answer.
    """
    from .. import _lib
    from .._config import config

    library = _lib.load()
    if library.version < SINCE:
        have = format_version(library.version)
        raise NotSupportedError(f"planning for a GPU that is described needs cuDNN >= 9.8, have {have}")
    installation = library.installation
    file = _standin(str(installation.folder) if installation else "")
    request = {
        "device": description,
        "convolutions": [one._asdict() for one in wanted],
        "allow_tf32": config.allow_tf32,
    }
    environ = {
        **os.environ,
        "CUDNN_CT_LIBRARY": str(installation.shim if installation else ""),
        "LD_PRELOAD": ":".join(filter(None, [f"/proc/self/fd/{file}", os.environ.get("LD_PRELOAD")])),
    }
    try:
        done = subprocess.run(
            [sys.executable or "python3", "-c", CHILD, *sys.path],
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
    try:
        return _read(done)
    except PlanningError as error:
        library.with_diagnosis(error)
        raise


def _standin(folder: str) -> int:
    """A file in memory, so that no folder need be writable: the stand-in, with what these libraries want."""
    from .. import _elf
    from ..doctor import libraryset, stub_libcuda

    found = libraryset.read(folder)
    libraries = found.sound if found else ()
    names = {name for library in libraries if library.dynamic for name in library.dynamic.undefined}
    made = stub_libcuda.make(filter(re.compile(r"cu[A-Z]").match, names), _elf.machine_here())
    file = os.memfd_create("libcuda.so.1")
    os.write(file, made)
    return file


def _read(done: subprocess.CompletedProcess[str]) -> list[list[Candidate]]:
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        died = -done.returncode in set(signal.Signals)
        how = signal.Signals(-done.returncode).name if died else f"exit code {done.returncode}"
        words = (done.stderr.strip().splitlines() or [""])[-1]
        raise PlanningError(f"the process that plans ended with {how}{f': {words}' if words else ''}")
    try:
        told = json.loads(lines[-1])
    except ValueError:
        raise PlanningError(f"the process that plans wrote {lines[-1][:99]!r} for an answer") from None
    if "error" in told:
        raise _failure(**told)
    return [[_candidate(row) for row in rows] for rows in told["rows"]]


def _failure(error: str, refused: bool, notes: list[str]) -> CudnnError:
    made = (BadParamError if refused else CudnnError)(error)
    for note in notes:
        made.add_note(note)
    return made


def _candidate(row: dict[str, Any]) -> Candidate:
    candidate = Candidate(**row)
    return candidate._replace(relayout=(), notes=tuple(candidate.notes))


def answer() -> None:
    """Be the child process: read what is to be planned from stdin, and write the rows to stdout."""
    from ..graph.offline import Planner
    from ..ops.conv.graph import candidates

    request = json.load(sys.stdin)
    told: dict[str, Any]
    try:
        planner = Planner(request["device"])
        problems = [_convolution(row).problem(request["allow_tf32"]) for row in request["convolutions"]]
        rows = [candidates(problem, planner) for problem in problems]
        told = {"rows": [[row._asdict() for row in some] for some in rows]}
    except CudnnError as error:
        told = {
            "error": first_line(error),
            "refused": isinstance(error, BadParamError),
            "notes": verdict_of(error),
        }
    print(f"\n{json.dumps(told)}", flush=True)
    os._exit(0)  # destructors of libraries, on a driver that is none, are no part of the question


def _convolution(row: dict[str, Any]) -> Convolution:
    padding = row["padding"]
    if isinstance(padding, list):  # tuples do not survive JSON
        padding = tuple(tuple(one) if isinstance(one, list) else one for one in padding)
    return Convolution(**{**row, "padding": padding})
