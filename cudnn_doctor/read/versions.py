"""Versions of cuDNN: as three numbers, as text, and as one number."""

from __future__ import annotations

from typing import Tuple

Version = Tuple[int, int, int]


def version_number(version: Version) -> int:
    """Return a version as ``cudnnGetVersion`` does: 9.27.0 is 92700, 8.9.7 is 8907."""
    major, minor, patch = version
    return major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch


def dotted(version: tuple[int, ...]) -> str:
    """Format a version, such as ``9.27.0``."""
    return ".".join(map(str, version))


def format_version(version: int) -> str:
    """Format a cuDNN version number: ``92700`` is ``"9.27.0"``, ``8907`` is ``"8.9.7"``."""
    major = 10_000 if version >= 90_000 else 1_000  # cuDNN 9 changed the packing
    return f"{version // major}.{version % major // 100}.{version % 100}"
