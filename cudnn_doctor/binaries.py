"""Read the code for GPUs in a library, and the headers of a DLL of Windows, which is never opened."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from .read import elf as _elf
from .read.elf import ElfError, Segment, Symbols, View

# --- fat binaries ------------------------------------------------------------------------------------------

# The layout of the section ``.nv_fatbin`` is not documented. Unexpected data gives "unknown", never an error.
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
        with View(library.path, library.size) as view:
            section = library.fatbin or _section(view, b".nv_fatbin")
            entries = set(_entries(view, *section)) if section else set()
    except ElfError as error:
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


def _section(view: View, wanted: bytes) -> tuple[int, int] | None:
    """Find offset and size of a section by its name."""
    table, entry, count, names = view.unpack("<40xQ10xHHH", 0)
    if entry != 64 or names >= count:
        return None
    view.require(table + entry * count)  # the linker does not need it, but the end of the file is missing
    rows = list(struct.iter_unpack("<I20xQQ24x", view.at(table, entry * count)))
    _, at, size = rows[names]
    text = view.at(at, min(size, 1 << 20))
    for name, offset, length in rows:
        if text[name : name + len(wanted) + 1] == wanted + b"\0":
            return offset, length
    return None


def _entries(view: View, at: int, size: int) -> Iterator[tuple[int, int, int, bool]]:
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


def _next(view: View, at: int, end: int) -> int:
    """Return the place of the next container; the end if none follows within a limit."""
    for place in range(at, min(end, at + MAX_GAP), BLOCK):
        block = view.at(place, min(BLOCK, end - place))
        found = block.find(struct.pack("<I", MAGIC), 8 if place == at else 0)
        if found >= 0:
            return place + found
    return end


# --- libraries of Windows ----------------------------------------------------------------------------------

_MACHINES = {0x8664: 62, 0xAA64: 183, 0x14C: 3, 0x1C0: 40}  # to e_machine
EXPORTS, IMPORTS, SECURITY, DELAYED = 0, 1, 4, 13  # data directories
FATBIN = 2  # the kind of the section with device code
MAX_NAMES = 20_000
MAX_LIBRARIES = 200
_USUAL, _LONGEST = 256, 4096  # bytes of a name


@dataclass(frozen=True)
class Pe(_elf.Elf):
    """The headers of one DLL; addresses are relative to its base."""

    directories: tuple[tuple[int, int], ...] = ()  # address and size

    @cached_property
    def symbols(self) -> Symbols:
        """The exported symbols, and those that it imports from libraries of cuDNN."""
        with View(self.path, self.size) as view:
            file = _File(view, self.segments)
            imports = {name for dll, name in _imports(file, self) if dll.startswith("cudnn")}
            return Symbols(dict(_exports(file, self)), frozenset(imports), frozenset())


class _File:
    """A DLL that is read by addresses."""

    def __init__(self, view: View, segments: tuple[Segment, ...]) -> None:
        self.view, self._segments = view, segments

    def offset(self, address: int) -> int:
        """Return the offset of an address; raise ElfError if no section contains it."""
        for _, offset, start, size in self._segments:
            if start <= address < start + size:
                return offset + address - start
        raise self.view.malformed(f"points to address {address:#x}, which is outside its sections")

    def at(self, address: int, size: int) -> bytes:
        return self.view.at(self.offset(address), size)

    def name(self, address: int) -> str:
        offset = self.offset(address)
        for longest in (_USUAL, _LONGEST):
            data = self.view.at(offset, min(longest, self.view.size - offset))
            end = data.find(b"\0")
            if end >= 0:
                return data[:end].decode("utf-8", "replace")
        raise self.view.malformed("has an unterminated name")


def read_dll(path: str) -> Pe:
    """Read the headers of a 64-bit DLL; raise ElfError if the file is not one."""
    with View(path) as view:
        machine, sections, directories = _headers(view)
        pe = Pe(path, view.size, machine, sections, directories=directories)
        file = _File(view, sections)
        address, size = directories[EXPORTS]
        soname = file.name(struct.unpack_from("<I", file.at(address, 40), 12)[0]) if size else None
        needed = tuple(dict.fromkeys(name for name, _ in _libraries(file, pe)))
        code = next(((each.offset, each.size) for each in sections if each.kind == FATBIN), None)
        return replace(pe, soname=soname, needed=needed, fatbin=code)


def _headers(view: View) -> tuple[int, tuple[Segment, ...], tuple[tuple[int, int], ...]]:
    """Return the machine, the sections, and the data directories."""
    (at,) = struct.unpack_from("<I", view.start(b"MZ"), 60)
    view.require(at + 264)
    signature, machine, count, optional, magic = view.unpack("<4sHH12xH2xH", at)
    if signature != b"PE\0\0":  # type: ignore[comparison-overlap]
        raise ElfError("foreign", view.path, "is not a library of Windows")
    if magic != 0x20B:
        width = "32-bit" if magic == 0x10B else "malformed"
        raise ElfError("class", view.path, f"is a {width} library")
    (directories,) = view.unpack("<I", at + 24 + 108)
    table = view.at(at + 24 + 112, 8 * min(directories, 16)).ljust(128, b"\0")
    rows = tuple(struct.iter_unpack("<II", table))
    sections = tuple(_sections(view, at + 24 + optional, min(count, 96)))
    view.require(sum(rows[SECURITY]))  # the signature follows the sections
    return _MACHINES.get(machine, machine), sections, rows


def _sections(view: View, at: int, count: int) -> Iterator[Segment]:
    view.require(at + 40 * count)
    for name, virtual, address, size, offset in struct.iter_unpack("<8sIIII16x", view.at(at, 40 * count)):
        view.require(offset + size)
        kind = FATBIN if name.startswith(b".nv_fatb") else _elf.PT_LOAD
        yield Segment(kind, offset, address, min(virtual, size) or size)


def _exports(file: _File, pe: Pe) -> Iterator[tuple[str, tuple[int, int]]]:
    address, size = pe.directories[EXPORTS]
    if not size:
        return
    functions, names, function_at, name_at, ordinal_at = struct.unpack("<20xIIIII", file.at(address, 40))
    if max(functions, names) > MAX_NAMES:
        raise file.view.malformed(f"exports {functions:,} functions")
    addresses = struct.unpack(f"<{functions}I", file.at(function_at, 4 * functions))
    ordinals = struct.unpack(f"<{names}H", file.at(ordinal_at, 2 * names))
    for (at,), ordinal in zip(struct.iter_unpack("<I", file.at(name_at, 4 * names)), ordinals):
        if ordinal < functions:
            yield file.name(at), (addresses[ordinal], 64)


def _libraries(file: _File, pe: Pe) -> Iterator[tuple[str, int]]:
    """Yield the libraries that it imports, at once or delayed, with the address of the list of names."""
    for directory, layout, step in ((IMPORTS, "<I8xI4x", 20), (DELAYED, "<4xI8xI12x", 32)):
        address, size = pe.directories[directory]
        for number in range(MAX_LIBRARIES if size else 0):
            first, second = struct.unpack(layout, file.at(address + number * step, step))
            name, table = (second, first) if directory == IMPORTS else (first, second)
            if not name:
                break
            yield file.name(name).lower(), table


def _imports(file: _File, pe: Pe) -> Iterator[tuple[str, str]]:
    for library, table in _libraries(file, pe):
        for number in range(MAX_NAMES if table else 0):
            (value,) = struct.unpack("<Q", file.at(table + 8 * number, 8))
            if not value:
                break
            if not value >> 63:  # not by its number
                yield library, file.name((value & 0x7FFFFFFF) + 2)
