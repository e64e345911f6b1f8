"""Read the headers of a shared library without loading it.

``dlopen`` maps a file before it checks it, so a truncated library kills the process with SIGBUS, and the
error message for a library of another machine is "No such file or directory". Reading the headers first
takes tens of microseconds, and reads a few kilobytes of a file of half a gigabyte.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

__all__ = [
    "Elf", "ElfError", "Segment", "View", "check", "dynamic", "file_offset", "glibc_version", "machine_error",
    "machine_here", "opened", "read",
]  # fmt: skip

MACHINES = {3: "32-bit x86", 21: "POWER", 40: "32-bit ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}
_PLATFORMS = {"x86_64": 62, "aarch64": 183}

_REINSTALL = "copy or install it again (pip install --force-reinstall for a wheel)"

# The fix for each kind of error: the second half of every message.
ADVICE = {
    "missing": "install cuDNN again, or correct the path",
    "unreadable": "all users must be able to read the files of cuDNN: chmod a+r {path}",
    "empty": _REINSTALL,
    "text": "download the library itself",
    "foreign": _REINSTALL,
    "class": "install the cuDNN of this machine: {here}",
    "machine": "install the cuDNN of this machine: {here}",
    "truncated": _REINSTALL,
    "malformed": _REINSTALL,
}


class ElfError(Exception):
    """The file at ``path`` cannot be opened as a library here; ``kind`` is a key of ADVICE."""

    def __init__(self, kind: str, path: str, finding: str) -> None:
        self.kind = kind
        self.path = path
        here = MACHINES.get(machine_here(), "its processor")
        super().__init__(f"{path} {finding}; {ADVICE[kind].format(path=path, here=here)}")


class Segment(NamedTuple):
    """One program header."""

    kind: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class Elf:
    """The headers of one shared library."""

    path: str  # the file that was read
    size: int  # in bytes
    machine: int  # e_machine, a key of MACHINES
    segments: tuple[Segment, ...]  # its program headers; every PT_LOAD is inside the file
    soname: str | None  # its name among loaded libraries
    needed: tuple[str, ...]  # the libraries that it is linked with

    def constant(self, symbol: str) -> int | None:
        """Read an exported 4-byte data symbol; None if the library does not export it."""
        with opened(self.path) as file:
            view = View(self.path, file, self.size)
            address = _symbol_address(view, self.segments, symbol)
            if address is None:
                return None
            (value,) = view.unpack("<I", file_offset(view, self.segments, address))
            return int(value)


def machine_here() -> int:
    """Return the ``e_machine`` that this process can load; 0 if unknown."""
    return _PLATFORMS.get(os.uname().machine, 0) if hasattr(os, "uname") else 0


def glibc_version() -> str:
    """Return the version of this system's glibc, such as ``glibc 2.35``; empty for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):  # Windows has no confstr, and musl does not have the name
        return ""


def check(path: str | os.PathLike[str]) -> Elf:
    """Read a library; raise ElfError with the defect and the fix if this process cannot load it."""
    elf = read(path)
    if error := machine_error(elf):
        raise error
    return elf


def machine_error(elf: Elf) -> ElfError | None:
    """Return the error for a library that was built for another processor; None for this one."""
    if elf.machine == machine_here():
        return None
    name = MACHINES.get(elf.machine, f"machine {elf.machine}")
    return ElfError("machine", elf.path, f"is a library for {name}")


def read(path: str | os.PathLike[str]) -> Elf:
    """Read the headers of a 64-bit library of any machine; raise ElfError if the file is not one."""
    path = os.fspath(path)
    with opened(path) as file:
        view = View(path, file, os.fstat(file.fileno()).st_size)
        machine, table, entry, count = _header(view)
        segments = tuple(_segments(view, table, entry, count))
        soname, needed = _names(view, segments)
    return Elf(path, view.size, machine, segments, soname, needed)


PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_SONAME, DT_GNU_HASH = 1, 5, 6, 14, 0x6FFFFEF5

# Limits far above those of sound libraries, so that a damaged one cannot take long to read.
_LONGEST_NAME = 4096
LONGEST_CHAIN = 10_000


class View:
    """A file with bounds-checked reads.

    It uses ``pread`` and not ``mmap``, so that a file that is truncated meanwhile gives an error, not SIGBUS.
    """

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = file.fileno()

    def at(self, offset: int, size: int) -> bytes:
        """Read bytes; raise ElfError if they are not all inside the file."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.malformed(f"points to byte {offset + size:,} and has {self.size:,}")
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ElfError("truncated", self.path, "became shorter while it was read")
        return data

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Read numbers in the format of ``struct``."""
        return struct.unpack(layout, self.at(offset, struct.calcsize(layout)))

    def text(self, offset: int) -> str:
        """Read a zero-terminated string."""
        data = self.at(offset, min(_LONGEST_NAME, max(self.size - offset, 0)))
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")

    def malformed(self, finding: str) -> ElfError:
        """Return the error for an inconsistent file."""
        return ElfError("malformed", self.path, finding)


def opened(path: str) -> BinaryIO:
    """Open a regular file for reading; raise ElfError for others."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would block
            raise ElfError("foreign", path, "is not a regular file")
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        link = f" (a link to {os.readlink(path)}, which does not exist)" if os.path.islink(path) else ""
        raise ElfError("missing", path, f"does not exist{link}") from None
    except PermissionError:
        raise ElfError("unreadable", path, "cannot be read: permission denied") from None
    except OSError as error:
        raise ElfError("malformed", path, f"cannot be read: {error.strerror}") from None


def _header(view: View) -> tuple[int, int, int, int]:
    """Return the machine, and offset, entry size and number of the program headers."""
    if view.size == 0:
        raise ElfError("empty", view.path, "is empty")
    start = view.at(0, min(64, view.size))
    if not start.startswith(b"\x7fELF"):
        raise _foreign(view.path, start)
    if len(start) < 64:
        raise _truncated(view, 64)
    if start[4] != 2 or start[5] != 1:
        width = {1: "32-bit", 2: "64-bit"}.get(start[4], "malformed")
        raise ElfError("class", view.path, f"is a {width} library{'' if start[5] == 1 else ', big-endian'}")
    machine, table, entry, count = struct.unpack_from("<H12xQ14xHH", start, 18)
    if entry != 56 or count == 0:
        raise view.malformed(f"has {count} program headers of {entry} bytes")
    return machine, table, entry, count


def _foreign(path: str, start: bytes) -> ElfError:
    texts = (
        ((b"version https://git-lfs",), "is a Git LFS pointer, not the library (run git lfs pull)"),
        ((b"<",), "is a web page (HTML), not a library, probably from a failed download"),
        ((b"/* GNU ld", b"INPUT", b"GROUP"), "is a linker script, not a library"),
    )
    for starts, finding in texts:
        if start.lstrip().startswith(starts):
            return ElfError("text", path, finding)
    return ElfError("foreign", path, f"is not an ELF library: it starts with {start[:8]!r}")


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
        f"is truncated or damaged: got {view.size:,} bytes, expected {needs:,} from its header",
    )


def dynamic(view: View, segments: tuple[Segment, ...]) -> list[tuple[int, int]]:
    """List the tags and values of the dynamic section."""
    table = next((segment for segment in segments if segment.kind == PT_DYNAMIC), None)
    if table is None:
        return []
    data = view.at(table.offset, min(table.size, 1 << 16) // 16 * 16)
    return list(struct.iter_unpack("<QQ", data))


def file_offset(view: View, segments: tuple[Segment, ...], address: int) -> int:
    """Convert an address to an offset in the file; raise ElfError if no segment contains it."""
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise view.malformed(f"points to address {address:#x}, which is outside its segments")


def _symbol_address(view: View, segments: tuple[Segment, ...], symbol: str) -> int | None:
    """Look up an exported symbol in the GNU hash table, as the linker does."""
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
    """Yield the indices of the symbols with a hash value."""
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
