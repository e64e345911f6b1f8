"""Read for which GPUs a library has code, from the headers of its ``.nv_fatbin`` section."""

# The layout is not documented. Unexpected data gives "unknown", never an error.

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .. import _elf
from . import pe

__all__ = ["DeviceCode", "read"]

MAGIC = 0xBA55ED50
PTX, SASS = 1, 2

# The version of PTX depends on the toolkit: 7.x came with CUDA 11, 8.x with CUDA 12, 9.x with CUDA 13.
PTX_OF_CUDA = 4


@dataclass(frozen=True)
class DeviceCode:
    """The code for GPUs in one library, by compute capability: 86 is 8.6."""

    sass: frozenset[int]  # machine code: runs on the same major version with an equal or higher minor version
    ptx: frozenset[int]  # code that the driver compiles for this and all newer GPUs
    cuda: int  # the CUDA major version that compiled it; 0 if unknown

    def runs_on(self, arch: int) -> bool:
        """Return whether a GPU of this compute capability runs the code, perhaps from PTX."""
        same = any(have // 10 == arch // 10 and have <= arch for have in self.sass)
        return same or any(have <= arch for have in self.ptx)


def read(library: _elf.Elf) -> DeviceCode | None:
    """Read the device code of a library; None if it has none, or in an unknown layout."""
    # Raises ElfError if the file became shorter while it was read, or cannot be opened.
    try:
        with _elf.View(library.path, library.size) as view:
            section = pe.fatbin(library) or _section(view, b".nv_fatbin")
            entries = set(_entries(view, *section)) if section else set()
    except _elf.ElfError as error:
        if error.kind != "malformed":
            raise
        return None
    if not entries:
        return None
    languages = {language for kind, language, _ in entries if kind == PTX}
    return DeviceCode(
        frozenset(arch for kind, _, arch in entries if kind == SASS),
        frozenset(arch for kind, _, arch in entries if kind == PTX),
        max(languages) + PTX_OF_CUDA if languages else 0,
    )


def _section(view: _elf.View, wanted: bytes) -> tuple[int, int] | None:
    """Find offset and size of a section by its name."""
    table, entry, count, names = view.unpack("<40xQ10xHHH", 0)
    if entry != 64 or names >= count:
        return None
    rows = list(struct.iter_unpack("<I20xQQ24x", view.at(table, entry * count)))
    _, at, size = rows[names]
    text = view.at(at, min(size, 1 << 20))
    for name, offset, length in rows:
        if text[name : name + len(wanted) + 1] == wanted + b"\0":
            return offset, length
    return None


def _entries(view: _elf.View, at: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, major version of the language, and architecture of each entry."""
    end = at + size
    while at + 16 <= end:
        magic, header, length = view.unpack("<I2xHQ", at)
        if magic != MAGIC:
            at += 8  # padding between two containers
            continue
        piece, at = at + header, at + header + length
        while piece + 32 <= min(at, end):
            kind, skip, payload, language, arch = view.unpack("<H2xIQ10xHI", piece)
            yield kind, language, arch
            if skip + payload == 0:
                return
            piece += skip + payload
        at += -at % 8
