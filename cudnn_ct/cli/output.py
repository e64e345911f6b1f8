"""A wrapper for stdout and stderr that tolerates closed streams, closed pipes and full disks."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["hold"]


def hold() -> None:
    """Wrap the standard streams. A closed one is replaced: the next open file would get its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
        setattr(sys, name, _Output(stream))


class _Output:
    """A stream whose reader may close it, as ``| head`` does: the rest is dropped, the exit code is kept.

    click exits with 1 instead. Other errors are raised.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if text == "":  # click writes it to detect the kind of stream, and ignores errors
            return 0
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Redirect it to /dev/null: Python flushes the rest at exit, which would fail again."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise error
