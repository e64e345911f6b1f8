"""Standard output as a command has it: it may be closed, full, or read by one who has read enough."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["hold"]


def hold() -> None:
    """Put streams in place on which writing raises for a failure alone."""
    sys.stdout = _held(sys.stdout)
    sys.stderr = _held(sys.stderr)


def _held(stream: Any) -> Any:
    """What stands for a stream: for a closed one a file, as the next to be opened would take its number."""
    return _Output(stream) if stream else open(os.devnull, "w", encoding="utf-8")


class _Output:
    """A stream whose reader may go, as ``| head`` does: the rest is dropped, and the exit code counts."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, as any stream does."""
        if text == "":  # click tries it to see what kind of stream this is, and looks at no error
            return 0
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Let go of what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Lead it nowhere: what did not arrive would be tried again, and fail again, at the end of Python."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise error
