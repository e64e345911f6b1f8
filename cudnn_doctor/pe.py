"""Read the headers of a DLL of Windows, in the terms of `read.elf`; a DLL is never opened."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .read import elf as _elf
from .read.elf import ElfError, Segment, Symbols, View, truncated

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
        """Read bytes."""
        return self.view.at(self.offset(address), size)

    def name(self, address: int) -> str:
        """Read a name that ends with a null byte."""
        offset = self.offset(address)
        for longest in (_USUAL, _LONGEST):
            data = self.view.at(offset, min(longest, self.view.size - offset))
            end = data.find(b"\0")
            if end >= 0:
                return data[:end].decode("utf-8", "replace")
        raise self.view.malformed("has an unterminated name")


def read(path: str) -> Pe:
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
    if view.size == 0:
        raise ElfError("empty", view.path, "is empty")
    start = view.at(0, min(64, view.size))
    if start[:2] != b"MZ":
        raise _elf.foreign(view.path, start)
    if len(start) < 64:
        raise truncated(view, 64)
    (at,) = struct.unpack_from("<I", start, 60)
    if at + 264 > view.size:
        raise truncated(view, at + 264)
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
    end = sum(rows[SECURITY])  # the signature follows the sections
    if end > view.size:
        raise truncated(view, end)
    return _MACHINES.get(machine, machine), sections, rows


def _sections(view: View, at: int, count: int) -> Iterator[Segment]:
    if at + 40 * count > view.size:
        raise truncated(view, at + 40 * count)
    for name, virtual, address, size, offset in struct.iter_unpack("<8sIIII16x", view.at(at, 40 * count)):
        if offset + size > view.size:
            raise truncated(view, offset + size)
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
