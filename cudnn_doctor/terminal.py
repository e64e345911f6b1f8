"""Terminals: safe text from files and other programs, and colours."""

from __future__ import annotations

import os
import re
from typing import Any

_UNDECODED = re.compile("[\\udc80-\\udcff]+")  # how Python keeps bytes that it cannot decode


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except those in ``keep``."""
    # Bytes that the locale of this process cannot decode are read as UTF-8, and escaped if they are not
    # UTF-8.
    text = _UNDECODED.sub(
        lambda run: run[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), text
    )
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal that obeys control characters; None is a closed stream."""
    return bool(stream and stream.isatty()) and os.environ.get("TERM") != "dumb"


def is_styled(stream: Any) -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
