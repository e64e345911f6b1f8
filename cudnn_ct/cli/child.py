"""Child processes: a request in JSON to stdin, and an answer in JSON, in the last line of stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .._files import contents
from ..doctor.probe import end_with

MAX_FILE = 64 << 20  # bytes of a program, of calls, or of recorded graphs

# The child imports the same package as this process: its own search path may lead to another cudnn_ct.
CHILD = "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; from {} import answer; answer()"


class NoAnswerError(Exception):
    """A process has given no answer; the message says what it did instead."""


def user_file(path: str | os.PathLike[str]) -> bytes:
    """Read a program or another file to plan; raise ValueError if it cannot be read, or is not a file."""
    try:
        return contents(path, MAX_FILE)
    except OSError as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None


def start(
    module: str, request: dict[str, Any], environ: Mapping[str, str], files: Sequence[int], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run ``answer`` of a module in a child with these open files; raise OSError or TimeoutExpired."""
    return subprocess.run(
        [sys.executable or "python3", "-c", CHILD.format(module), *sys.path],
        input=json.dumps({**request, "parent": os.getpid()}),
        env=environ,
        pass_fds=files,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
    )


def read_request() -> dict[str, Any]:
    """Return the request of this child process, which from now on is killed when its parent ends."""
    request: dict[str, Any] = json.load(sys.stdin)
    end_with(request["parent"])
    return request


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the answer of a process, its last line; raise NoAnswerError with how it ended instead."""
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        died = -done.returncode in set(signal.Signals)
        how = signal.Signals(-done.returncode).name if died else f"exit code {done.returncode}"
        words = (done.stderr.strip().splitlines() or [""])[-1]
        raise NoAnswerError(f"ended with {how}{f': {words}' if words else ''}")
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise NoAnswerError(f"returned {lines[-1][:99]!r}, expected JSON") from None
    return answer
