"""Reads what a shared library says about itself, without opening it as one.

``dlopen`` maps a file before it looks at it, so a library that was cut short by an interrupted copy ends
the process with SIGBUS, and its words for a library of another machine are «No such file or directory».
Reading the headers first costs some tens of microseconds, and a few kilobytes of a file of half a gigabyte.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

__all__ = [
    "Elf",
    "ElfError",
    "Segment",
    "View",
    "check",
    "dynamic",
    "file_offset",
    "glibc_version",
    "machine_here",
    "opened",
    "read",
]

MACHINES = {3: "32-bit x86", 21: "POWER", 40: "32-bit ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}
_PLATFORMS = {"x86_64": 62, "aarch64": 183}

_REINSTALL = "copy or install it again (pip install --force-reinstall for a wheel)"

# What to do, by kind of finding: the second half of every message.
ADVICE = {
    "missing": "install cuDNN again, or correct the path",
    "unreadable": "cuDNN's files must be readable by everybody: chmod a+r {path}",
    "empty": _REINSTALL,
    "text": "download the library itself",
    "foreign": _REINSTALL,
    "class": "install the cuDNN of this machine: {here}",
    "machine": "install the cuDNN of this machine: {here}",
    "truncated": _REINSTALL,
    "malformed": _REINSTALL,
}


class ElfError(Exception):
    """A file is not a shared library that this machine can open.

    Attributes
    ----------
    kind : str
        One of ``ADVICE``: missing, unreadable, empty, text, foreign, class, machine, truncated, malformed.
    path : str
        The file.
    """

    def __init__(self, kind: str, path: str, finding: str) -> None:
        self.kind = kind
        self.path = path
        here = MACHINES.get(machine_here(), "its processor")
        super().__init__(f"{path} {finding}; {ADVICE[kind].format(path=path, here=here)}")


class Segment(NamedTuple):
    """One program header: what is mapped, or found, where."""

    kind: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class Elf:
    """What the headers of one shared library say.

    Attributes
    ----------
    path : str
        The file that was read.
    size : int
        Its length in bytes.
    machine : int
        ``e_machine``: 62 is x86-64, 183 is aarch64.
    segments : tuple of Segment
        Its program headers, every PT_LOAD of which lies inside the file.
    soname : str or None
        The name it goes by among loaded libraries.
    needed : tuple of str
        The libraries that the linker loads with it.
    """

    path: str
    size: int
    machine: int
    segments: tuple[Segment, ...]
    soname: str | None
    needed: tuple[str, ...]

    def constant(self, symbol: str) -> int | None:
        """Read a 4-byte data symbol that the library exports; None when it exports no such symbol."""
        with opened(self.path) as file:
            view = View(self.path, file, self.size)
            address = _symbol_address(view, self.segments, symbol)
            if address is None:
                return None
            (value,) = view.unpack("<I", file_offset(view, self.segments, address))
            return int(value)


def machine_here() -> int:
    """Tell the ``e_machine`` that this Python's process can open; 0 where it is not known."""
    return _PLATFORMS.get(os.uname().machine, 0) if hasattr(os, "uname") else 0


def glibc_version() -> str:
    """Return the version of this system's glibc, such as ``glibc 2.35``; empty for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):  # Windows has no confstr, and musl does not have the name
        return ""


def check(path: str | os.PathLike[str]) -> Elf:
    """Read a library and make sure that this process can open it.

    Raises
    ------
    ElfError
        With the path, what is wrong and what to do.
    """
    elf = read(path)
    if elf.machine != machine_here():
        name = MACHINES.get(elf.machine, f"machine {elf.machine}")
        raise ElfError("machine", elf.path, f"is a library for {name}")
    return elf


def read(path: str | os.PathLike[str]) -> Elf:
    """Read the headers of a 64-bit library of any machine.

    Raises
    ------
    ElfError
        When the file is missing, unreadable, not an ELF file, of another class, cut short or inconsistent.
    """
    path = os.fspath(path)
    with opened(path) as file:
        view = View(path, file, os.fstat(file.fileno()).st_size)
        machine, table, entry, count = _header(view)
        segments = tuple(_segments(view, table, entry, count))
        soname, needed = _names(view, segments)
    return Elf(path, view.size, machine, segments, soname, needed)


PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_SONAME, DT_GNU_HASH = 1, 5, 6, 14, 0x6FFFFEF5

# Bounds that no sound library comes near, so that a damaged one is read in no time all the same.
_LONGEST_NAME = 4096
LONGEST_CHAIN = 10_000


class View:
    """A file from which only what lies inside it can be read.

    ``pread`` rather than ``mmap``: a file that shrinks while it is read then gives an error, not SIGBUS.
    """

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = file.fileno()

    def at(self, offset: int, size: int) -> bytes:
        """Read some bytes; raise ElfError where the file has none."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.malformed(f"points to byte {offset + size:,} and has {self.size:,}")
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ElfError("truncated", self.path, "became shorter while it was read")
        return data

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Read numbers by the layout of a ``struct``."""
        return struct.unpack(layout, self.at(offset, struct.calcsize(layout)))

    def text(self, offset: int) -> str:
        """Read a string up to its zero byte."""
        data = self.at(offset, min(_LONGEST_NAME, max(self.size - offset, 0)))
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")

    def malformed(self, finding: str) -> ElfError:
        """Make the error of a file that contradicts itself."""
        return ElfError("malformed", self.path, finding)


def opened(path: str) -> BinaryIO:
    """Open a file to read it, if it is a regular one; raise ElfError otherwise."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would make us wait
            raise ElfError("foreign", path, "is not a regular file")
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        link = f" (a link to {os.readlink(path)}, which is not there)" if os.path.islink(path) else ""
        raise ElfError("missing", path, f"does not exist{link}") from None
    except PermissionError:
        raise ElfError("unreadable", path, "cannot be read: permission denied") from None
    except OSError as error:
        raise ElfError("malformed", path, f"cannot be read: {error.strerror}") from None


def _header(view: View) -> tuple[int, int, int, int]:
    """Return machine, offset of the program headers, bytes and number of them."""
    if view.size == 0:
        raise ElfError("empty", view.path, "is empty")
    start = view.at(0, min(64, view.size))
    if not start.startswith(b"\x7fELF"):
        raise ElfError(*_what_else(view.path, start))
    if len(start) < 64:
        raise _truncated(view, 64)
    if start[4] != 2 or start[5] != 1:
        width = {1: "32-bit", 2: "64-bit"}.get(start[4], "malformed")
        raise ElfError("class", view.path, f"is a {width} library{'' if start[5] == 1 else ', big-endian'}")
    machine, table, entry, count = struct.unpack_from("<H12xQ14xHH", start, 18)
    if entry != 56 or count == 0:
        raise view.malformed(f"has {count} program headers of {entry} bytes")
    return machine, table, entry, count


def _what_else(path: str, start: bytes) -> tuple[str, str, str]:
    if start.startswith(b"version https://git-lfs"):
        return "text", path, "is a Git LFS pointer, not the library (git lfs pull brings it)"
    if start.lstrip().startswith(b"<"):
        return "text", path, "is a web page (HTML), not a library: a download saved what the server said"
    if start.startswith((b"/* GNU ld", b"INPUT", b"GROUP")):
        return "text", path, "is a linker script, not a library"
    return "foreign", path, f"is not an ELF library: it begins with {start[:8]!r}"


def _segments(view: View, table: int, entry: int, count: int) -> Iterator[Segment]:
    if table + entry * count > view.size:
        raise _truncated(view, table + entry * count)
    for kind, offset, address, size in struct.iter_unpack("<I4xQQ8xQ16x", view.at(table, entry * count)):
        if kind == PT_LOAD and offset + size > view.size:
            raise _truncated(view, offset + size)
        yield Segment(kind, offset, address, size)


def _names(view: View, segments: tuple[Segment, ...]) -> tuple[str | None, tuple[str, ...]]:
    tags = dynamic(view, segments)
    strings = next((value for tag, value in tags if tag == DT_STRTAB), None)
    if strings is None:
        return None, ()
    start = file_offset(view, segments, strings)
    soname = next((view.text(start + value) for tag, value in tags if tag == DT_SONAME), None)
    return soname, tuple(view.text(start + value) for tag, value in tags if tag == DT_NEEDED)


def _truncated(view: View, needs: int) -> ElfError:
    return ElfError(
        "truncated",
        view.path,
        f"is truncated or damaged: it has {view.size:,} bytes, and its header speaks of {needs:,}",
    )


def dynamic(view: View, segments: tuple[Segment, ...]) -> list[tuple[int, int]]:
    """List the tags and values of the dynamic section."""
    table = next((segment for segment in segments if segment.kind == PT_DYNAMIC), None)
    if table is None:
        return []
    data = view.at(table.offset, min(table.size, 1 << 16) // 16 * 16)
    return list(struct.iter_unpack("<QQ", data))


def file_offset(view: View, segments: tuple[Segment, ...], address: int) -> int:
    """Find where in the file an address is; raise ElfError where it is in none of the segments."""
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise view.malformed(f"points to address {address:#x}, which is in none of its segments")


def _symbol_address(view: View, segments: tuple[Segment, ...], symbol: str) -> int | None:
    """Look an exported symbol up as the linker does, through the GNU hash table."""
    tags = dict(reversed(dynamic(view, segments)))
    if not {DT_STRTAB, DT_SYMTAB, DT_GNU_HASH} <= tags.keys():
        return None
    strings, symbols, table = (
        file_offset(view, segments, tags[tag]) for tag in (DT_STRTAB, DT_SYMTAB, DT_GNU_HASH)
    )
    wanted = _gnu_hash(symbol)
    for index in _chain(view, table, wanted):
        name, section, address = view.unpack("<I2xHQ", symbols + 24 * index)
        if section != 0 and view.text(strings + name) == symbol:
            return address
    return None


def _chain(view: View, table: int, wanted: int) -> Iterator[int]:
    """Yield the indices of the symbols whose hash is the one wanted."""
    buckets, first, words = view.unpack("<III", table)
    if buckets == 0:
        return
    bucket = table + 16 + 8 * words
    (index,) = view.unpack("<I", bucket + 4 * (wanted % buckets))
    if index < first:
        return
    for symbol in range(index, index + LONGEST_CHAIN):
        (value,) = view.unpack("<I", bucket + 4 * buckets + 4 * (symbol - first))
        if value | 1 == wanted | 1:
            yield symbol
        if value & 1:  # the last of its bucket
            return


def _gnu_hash(symbol: str) -> int:
    value = 5381
    for byte in symbol.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
