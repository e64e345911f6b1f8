"""Read the headers of a shared library without loading it."""

# ``dlopen`` maps a file before it checks it, so that a truncated library kills the process with SIGBUS.

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import BinaryIO, NamedTuple

MACHINES = {3: "32-bit x86", 21: "POWER", 40: "32-bit ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}
_PLATFORMS = {"x86_64": 62, "aarch64": 183}

_REINSTALL = "copy or install it again (pip install --force-reinstall for a wheel)"

# The fix for each kind of error: the second half of every message.
ADVICE = {
    "missing": "install cuDNN again, or correct the path",
    "unreadable": "all users must be able to read the files of cuDNN: chmod a+r {path}",
    "text": "download the library itself",
    **dict.fromkeys(("class", "machine"), "install the cuDNN of this machine: {here}"),
    **dict.fromkeys(("empty", "foreign", "truncated", "malformed"), _REINSTALL),
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


class Symbols(NamedTuple):
    """The symbols of one library."""

    exports: Mapping[str, tuple[int, int]]  # the symbols that it defines, with their address and size
    undefined: frozenset[str]  # the symbols that other libraries must define, without weak ones
    versions: frozenset[str]  # the symbol versions that it needs, such as GLIBC_2.27


@dataclass(frozen=True)
class Elf:
    """The headers of one shared library."""

    path: str = ""  # the file that was read
    size: int = 0  # in bytes
    machine: int = 0  # e_machine, a key of MACHINES
    segments: tuple[Segment, ...] = ()  # its program headers; every PT_LOAD is inside the file
    tags: Mapping[int, int] = field(default_factory=dict)  # its dynamic section; of equal tags the first
    soname: str | None = None  # its name among loaded libraries
    needed: tuple[str, ...] = ()  # the libraries that it is linked with
    rpath: tuple[str, ...] = ()  # folders that are searched before LD_LIBRARY_PATH, as written
    runpath: tuple[str, ...] = ()  # folders that are searched after it
    fatbin: tuple[int, int] | None = None  # offset and size of the device code of a DLL

    @cached_property
    def symbols(self) -> Symbols:
        """The symbol tables; raises ElfError if they are damaged."""
        with View(self.path, self.size) as view:
            return _symbols(view, self.segments, self.tags)

    @property
    def provided(self) -> frozenset[str]:
        """The symbol versions that it defines; raises ElfError if their table is damaged."""
        if not {DT_STRTAB, DT_VERDEF} <= self.tags.keys():
            return frozenset()
        with View(self.path, self.size) as view:
            at = _file_offset(view, self.segments, self.tags[DT_VERDEF])
            strings = _Strings(view, self.segments, self.tags)
            return frozenset(_versions(view, at, strings, "<6xH4xII", "<II"))

    def constant(self, symbol: str) -> int | None:
        """Read an exported 4-byte data symbol; None if the library does not export it."""
        address, _ = self.symbols.exports.get(symbol, (None, 0))
        return None if address is None else int.from_bytes(self.content(address, 4), "little")

    def content(self, address: int, size: int) -> bytes:
        """Read bytes at an address of the loaded library; raise ElfError if they are outside the file."""
        with View(self.path, self.size) as view:
            return view.at(_file_offset(view, self.segments, address), size)


UNREAD = Elf()  # in place of one that cannot be read


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


def machine_of(path: str) -> int:
    """Return the ``e_machine`` of a program or library; 0 if the file is not one for 64-bit machines."""
    try:
        with View(path) as view:
            return _header(view)[0]
    except ElfError:
        return 0


def read(path: str | os.PathLike[str]) -> Elf:
    """Read the headers of a 64-bit library of any machine; raise ElfError if the file is not one."""
    with View(os.fspath(path)) as view:
        machine, table, entry, count = _header(view)
        segments = tuple(_segments(view, table, entry, count))
        return _with_names(view, Elf(view.path, view.size, machine, segments))


PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 6, 10, 14, 15, 29
DT_GNU_HASH, DT_VERDEF, DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFFC, 0x6FFFFFFE

# Bytes that are read of one library, 30 times those of the largest one of cuDNN: a library that needs more is
# damaged or hostile.
MAX_READ = 16 << 20
_SHORTEST = 64  # bytes that a shorter read counts for, because many short reads are slow
_LONGEST_NAME = 16 << 10  # bytes, of a search path too
_MOST_NAMES = 1 << 16  # that are kept in memory, ten times those of a library of cuDNN


class View:
    """A regular file with bounds-checked reads, which fail after a limited number of bytes."""

    # It uses ``pread`` and not ``mmap``, so that a file that is truncated meanwhile gives an error, not
    # SIGBUS.

    def __init__(self, path: str, size: int | None = None) -> None:
        self.path = path
        self._file = _opened(path)
        self._descriptor = self._file.fileno()
        self.size = os.fstat(self._descriptor).st_size if size is None else size
        self._read = 0

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def at(self, offset: int, size: int) -> bytes:
        """Read bytes; raise ElfError if they are not all inside the file."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.malformed(f"points to byte {offset + size:,} and has {self.size:,}")
        self.spend(size)
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ElfError("truncated", self.path, "became shorter while it was read")
        return data

    def spend(self, size: int) -> None:
        """Count bytes that are read, or read again from memory."""
        self._read += size if size > _SHORTEST else _SHORTEST
        if self._read > MAX_READ:
            raise self.malformed(f"has tables of more than {MAX_READ:,} bytes")

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Read numbers in the format of ``struct``."""
        return struct.unpack(layout, self.at(offset, struct.calcsize(layout)))

    def start(self, magic: bytes) -> bytes:
        """Read the first 64 bytes; raise ElfError if they do not begin with ``magic``."""
        if self.size == 0:
            raise ElfError("empty", self.path, "is empty")
        start = self.at(0, min(64, self.size))
        if not start.startswith(magic):
            raise _foreign(self.path, start)
        self.require(64)
        return start

    def require(self, size: int) -> None:
        """Raise ElfError if the file is shorter than its header says."""
        if size > self.size:
            text = f"is truncated or damaged: got {self.size:,} bytes, expected {size:,} from its header"
            raise ElfError("truncated", self.path, text)

    def malformed(self, finding: str) -> ElfError:
        """Return the error for an inconsistent file."""
        return ElfError("malformed", self.path, finding)


def _opened(path: str) -> BinaryIO:
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
    start = view.start(b"\x7fELF")
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
    view.require(table + entry * count)
    for kind, offset, address, size in struct.iter_unpack("<I4xQQ8xQ16x", view.at(table, entry * count)):
        if kind == PT_LOAD:
            view.require(offset + size)
        yield Segment(kind, offset, address, size)


def _with_names(view: View, elf: Elf) -> Elf:
    """Add the dynamic section, and the names in it."""
    table = next((segment for segment in elf.segments if segment.kind == PT_DYNAMIC), None)
    if table is None:
        return elf
    entries = list(struct.iter_unpack("<QQ", view.at(table.offset, table.size // 16 * 16)))
    tags = dict(reversed(entries))
    if DT_STRTAB not in tags:  # overwritten with zeros, or moved by a conversion of line ends
        raise view.malformed("has no string table in its dynamic section")
    strings = _Strings(view, elf.segments, tags)

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(filter(None, strings[tags[tag]].split(":"))) if tag in tags else ()

    soname = strings[tags[DT_SONAME]] if DT_SONAME in tags else None
    needed = tuple(strings[value] for tag, value in entries if tag == DT_NEEDED)
    if "" in (soname, *needed):  # overwritten with zeros
        raise view.malformed("has empty names in its string table")
    return replace(
        elf, tags=tags, soname=soname, needed=needed, rpath=folders(DT_RPATH), runpath=folders(DT_RUNPATH)
    )


def _file_offset(view: View, segments: tuple[Segment, ...], address: int) -> int:
    """Convert an address to an offset in the file; raise ElfError if no segment contains it."""
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise view.malformed(f"points to address {address:#x}, which is outside its segments")


class _Strings:
    """The string table, read in one call, because thousands of small reads are slow."""

    def __init__(self, view: View, segments: tuple[Segment, ...], tags: Mapping[int, int]) -> None:
        self._view = view
        self._data = view.at(_file_offset(view, segments, tags[DT_STRTAB]), tags.get(DT_STRSZ, 0))

    def by_place(self) -> dict[int, str]:
        """Return all names by their places; empty if the table has too many or too long ones, or no ASCII."""
        # Ten times as fast as reading ten thousand names one by one. A symbol may also point into a name.
        if self._data.count(0) > _MOST_NAMES:
            return {}
        *names, rest = self._data.decode("ascii", "ignore").split("\0")
        sizes = [len(name) + 1 for name in names]
        if rest or not self._data.isascii() or max(sizes, default=0) > _LONGEST_NAME:
            return {}
        return dict(zip(accumulate(sizes, initial=0), names))

    def __getitem__(self, at: int) -> str:
        end = self._data.find(b"\0", at, at + _LONGEST_NAME + 1)
        if end < 0:
            raise self._view.malformed(f"has an unterminated name of more than {_LONGEST_NAME:,} bytes")
        self._view.spend(end - at)  # many symbols may have the same long name
        return self._data[at:end].decode("utf-8", "replace")


def _symbols(view: View, segments: tuple[Segment, ...], tags: Mapping[int, int]) -> Symbols:
    if DT_STRTAB not in tags:
        return Symbols({}, frozenset(), frozenset())
    strings = _Strings(view, segments, tags)
    known = strings.by_place()
    exports: dict[str, tuple[int, int]] = {}
    undefined: set[str] = set()
    if {DT_SYMTAB, DT_GNU_HASH} <= tags.keys():
        count = _symbol_count(view, _file_offset(view, segments, tags[DT_GNU_HASH]))
        table = view.at(_file_offset(view, segments, tags[DT_SYMTAB]), 24 * count)
        for name, info, section, address, size in struct.iter_unpack("<IBxHQQ", table):
            if section:
                exports[known.get(name) or strings[name]] = (address, size)
            elif info >> 4 == 1:  # a weak symbol may stay undefined
                undefined.add(known.get(name) or strings[name])
    needed: Iterator[str] = iter(())
    if DT_VERNEED in tags:
        at = _file_offset(view, segments, tags[DT_VERNEED])
        needed = _versions(view, at, strings, "<2xH4xII", "<8xII")
    return Symbols(exports, frozenset(undefined), frozenset(needed))


def _symbol_count(view: View, table: int) -> int:
    """Count the symbols by the hash table; no other field has their number."""
    buckets, first, words = view.unpack("<III", table)
    start = table + 16 + 8 * words
    index = max(view.unpack(f"<{buckets}I", start), default=0)
    if index < first:
        return first
    chain = start + 4 * buckets
    while not view.unpack("<I", chain + 4 * (index - first))[0] & 1:  # the mark of the last of its bucket
        index += 1
    return index + 1


def _versions(view: View, at: int, strings: _Strings, head: str, row: str) -> Iterator[str]:
    """Yield the symbol versions of a list, each entry of which has a list of them."""
    while True:
        count, first, following = view.unpack(head, at)
        name_at = at + first
        for _ in range(count):
            name, step = view.unpack(row, name_at)
            yield strings[name]
            name_at += step
        if not following:
            return
        at += following
