"""Make text from files and other programs safe to print on a terminal."""

from __future__ import annotations

import re

_UNDECODED = re.compile("[\\udc80-\\udcff]+")  # how Python keeps bytes that it cannot decode


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except those in ``keep``."""
    # Bytes that the locale of this process cannot decode are read as UTF-8, and escaped if they are not
    # UTF-8.
    text = _UNDECODED.sub(
        lambda run: run[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), text
    )
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)
