"""Read for which GPUs a library has code, from the headers of its ``.nv_fatbin`` section."""

# The layout is not documented. Unexpected data gives "unknown", never an error.

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from .read import elf as _elf

MAGIC = 0xBA55ED50
PTX, SASS = 1, 2
BLANK = 0  # in place of the kind of an entry that does not exist

HEAD = 128  # bytes that contain the header of an entry and the start of its code
PADDING = 4096  # bytes between two containers, at most
BLOCK, MAX_GAP = 64 << 10, 4 << 20  # bytes

# The version of PTX depends on the toolkit: 7.x came with CUDA 11, 8.x with CUDA 12, 9.x with CUDA 13.
PTX_OF_CUDA = 4


class DeviceCode(NamedTuple):
    """The code for GPUs in one library, by compute capability: 86 is 8.6."""

    sass: frozenset[int]  # machine code: runs on the same major version with an equal or higher minor version
    ptx: frozenset[int]  # code that the driver compiles for this and all newer GPUs
    cuda: int  # the CUDA major version that compiled it; 0 if unknown
    zeroed: frozenset[int] = frozenset()  # machine code that was overwritten with zeros
    blank: bool = False  # whether a part of the section has zeros in place of the list of code

    @property
    def machine_code(self) -> frozenset[int]:
        """The GPUs that run its machine code: the driver takes the newest of the same major version."""
        # Also later GPUs of the major version: 8.6 runs code for 8.0.
        have = self.sass | self.zeroed
        archs = (arch for one in have for arch in range(one, one // 10 * 10 + 10))
        picked = {arch: max(each for each in have if each <= arch) for arch in archs}
        return frozenset(arch for arch, own in picked.items() if own not in self.zeroed and not self.blank)

    def runs_on(self, arch: int) -> bool:
        """Return whether a GPU of this compute capability runs the code, perhaps from PTX."""
        return arch in self.machine_code or any(have <= arch for have in self.ptx)


def read(library: _elf.Elf) -> DeviceCode | None:
    """Read the device code of a library; None if it has none, or in an unknown layout."""
    # Raises ElfError if the file became shorter while it was read, or cannot be opened.
    try:
        with _elf.View(library.path, library.size) as view:
            section = library.fatbin or _section(view, b".nv_fatbin")
            entries = set(_entries(view, *section)) if section else set()
    except _elf.ElfError as error:
        if error.kind != "malformed":
            raise
        return None
    if not entries:
        return None
    languages = {language for kind, language, _, _ in entries if kind == PTX}
    zeroed = {(kind, arch) for kind, _, arch, zero in entries if zero}
    sound = {(kind, arch) for kind, _, arch, _ in entries} - zeroed
    return DeviceCode(
        frozenset(arch for kind, arch in sound if kind == SASS),
        frozenset(arch for kind, arch in sound if kind == PTX),
        max(languages) + PTX_OF_CUDA if languages else 0,
        frozenset(arch for kind, arch in zeroed if kind == SASS),
        any(kind == BLANK for kind, _ in zeroed),
    )


def _section(view: _elf.View, wanted: bytes) -> tuple[int, int] | None:
    """Find offset and size of a section by its name."""
    table, entry, count, names = view.unpack("<40xQ10xHHH", 0)
    if entry != 64 or names >= count:
        return None
    if table + entry * count > view.size:  # the linker does not need it, but the end of the file is missing
        raise _elf.truncated(view, table + entry * count)
    rows = list(struct.iter_unpack("<I20xQQ24x", view.at(table, entry * count)))
    _, at, size = rows[names]
    text = view.at(at, min(size, 1 << 20))
    for name, offset, length in rows:
        if text[name : name + len(wanted) + 1] == wanted + b"\0":
            return offset, length
    return None


def _entries(view: _elf.View, at: int, size: int) -> Iterator[tuple[int, int, int, bool]]:
    """Yield kind, major version of the language, and architecture of each entry, and whether it is zeroed."""
    end = at + size
    while at + 16 <= end:
        head = view.at(at, min(16 + HEAD, end - at))  # of the container and of its first entry
        magic, header, length = struct.unpack_from("<I2xHQ", head)
        if magic != MAGIC:  # padding between two containers, or what a tool left of containers
            following = _next(view, at, end)
            if following - at > PADDING:
                yield BLANK, 0, 0, True
            at = following
            continue
        piece, at = at + header, at + header + length
        start, stop = head[header : header + HEAD] if header <= 16 else b"", min(at, end) - 32
        while piece <= stop:
            start = start or view.at(piece, HEAD if piece + HEAD <= end else end - piece)
            kind, skip, payload, language, arch = struct.unpack_from("<H2xIQ10xHI", start)
            if skip + payload == 0:
                yield BLANK, 0, 0, True
                break
            code = (
                start[skip : skip + 8] if skip + 8 <= len(start) else view.at(piece + skip, min(payload, 8))
            )
            yield kind, language, arch, payload > 0 and not any(code)
            piece, start = piece + skip + payload, b""
        at += -at % 8


def _next(view: _elf.View, at: int, end: int) -> int:
    """Return the place of the next container; the end if none follows within a limit."""
    for place in range(at, min(end, at + MAX_GAP), BLOCK):
        block = view.at(place, min(BLOCK, end - place))
        found = block.find(struct.pack("<I", MAGIC), 8 if place == at else 0)
        if found >= 0:
            return place + found
    return end
