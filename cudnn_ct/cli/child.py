"""The answer of a child process: JSON in the last line that it prints."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

__all__ = ["NoAnswerError", "answer_of"]


class NoAnswerError(Exception):
    """A process has given no answer; the message says what it did instead."""


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the answer of a process that has ended, after lines that cuDNN may have printed.

    Raises NoAnswerError, with the signal or the exit code that ended the process, and the last line of its
    errors.
    """
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
