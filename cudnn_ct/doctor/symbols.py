"""Read the dynamic section of a library: its exports, its imports, and its search paths."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .. import _elf
from .._elf import DT_GNU_HASH, DT_STRTAB, DT_SYMTAB

__all__ = ["NOTHING", "Dynamic", "code", "read"]

DT_STRSZ, DT_RPATH, DT_RUNPATH, DT_VERNEED = 10, 15, 29, 0x6FFFFFFE

# About 20 times the values of the largest cuDNN library: a file above them is damaged or hostile.
MAX_SYMBOLS = 50_000
MAX_NAMES = 4 << 20  # bytes: of the string table, and of all names read from it, which may overlap there
LONGEST_NAME = 16 << 10  # bytes, of a search path too
MAX_FOLDERS = 256  # of one RPATH or RUNPATH
MAX_VERSIONS = 1000
MAX_CODE = 64 << 10  # bytes of one function


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section of one library."""

    exports: Mapping[str, tuple[int, int]]  # the symbols that it defines, with their address and size
    undefined: frozenset[str]  # the symbols that other libraries must define, without weak ones
    rpath: tuple[str, ...]  # folders that are searched before LD_LIBRARY_PATH, as written
    runpath: tuple[str, ...]  # folders that are searched after it
    versions: frozenset[str]  # the symbol versions that it needs, such as GLIBC_2.27


NOTHING = Dynamic(MappingProxyType({}), frozenset(), (), (), frozenset())


def read(library: _elf.Elf) -> Dynamic:
    """Read the dynamic section of a library; raise ElfError if it is damaged or exceeds a limit."""
    with _elf.opened(library.path) as file:
        view = _elf.View(library.path, file, library.size)
        entries = _elf.dynamic(view, library.segments)
        tags = dict(reversed(entries))
        if DT_STRTAB not in tags:
            return NOTHING
        strings = _Strings(view, library, tags)
        exports, undefined = _symbols(view, library, tags, strings)
        return Dynamic(
            exports,
            frozenset(undefined),
            strings.folders(tags.get(DT_RPATH)),
            strings.folders(tags.get(DT_RUNPATH)),
            frozenset(_versions(view, library, tags, strings)),
        )


def code(library: _elf.Elf, function: tuple[int, int]) -> bytes:
    """Return the machine code of an exported function; raise ElfError if it is outside the file."""
    address, size = function
    with _elf.opened(library.path) as file:
        view = _elf.View(library.path, file, library.size)
        return view.at(_elf.file_offset(view, library.segments, address), min(size, MAX_CODE))


class _Strings:
    """The string table, read in one call, because thousands of small reads are slow."""

    def __init__(self, view: _elf.View, library: _elf.Elf, tags: dict[int, int]) -> None:
        size = tags.get(DT_STRSZ, 0)
        if size > MAX_NAMES:
            raise view.malformed(f"has a string table of {size:,} bytes")
        self._view = view
        self._data = view.at(_elf.file_offset(view, library.segments, tags[DT_STRTAB]), size)
        self._read = 0

    def __getitem__(self, at: int) -> str:
        end = self._data.find(b"\0", at, at + LONGEST_NAME + 1)
        if end < 0:
            raise self._view.malformed(f"has an unterminated name of more than {LONGEST_NAME:,} bytes")
        self._read += end - at
        if self._read > MAX_NAMES:  # many symbols may have the same long name
            raise self._view.malformed(f"has names of more than {MAX_NAMES:,} bytes")
        return self._data[at:end].decode("utf-8", "replace")

    def folders(self, at: int | None) -> tuple[str, ...]:
        """Read a search path."""
        found = () if at is None else tuple(filter(None, self[at].split(":")))
        if len(found) > MAX_FOLDERS:
            raise self._view.malformed(f"has a search path of {len(found):,} folders")
        return found


def _symbols(
    view: _elf.View, library: _elf.Elf, tags: dict[int, int], strings: _Strings
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    exports: dict[str, tuple[int, int]] = {}
    undefined: set[str] = set()
    if not {DT_SYMTAB, DT_GNU_HASH} <= tags.keys():
        return exports, undefined
    count = _symbol_count(view, _elf.file_offset(view, library.segments, tags[DT_GNU_HASH]))
    table = view.at(_elf.file_offset(view, library.segments, tags[DT_SYMTAB]), 24 * count)
    for name, info, section, address, size in struct.iter_unpack("<IBxHQQ", table):
        if section:
            exports[strings[name]] = (address, size)
        elif info >> 4 == 1:  # a weak symbol may stay undefined
            undefined.add(strings[name])
    return exports, undefined


def _symbol_count(view: _elf.View, table: int) -> int:
    """Count the symbols by the hash table; no other field has their number."""
    buckets, first, words = view.unpack("<III", table)
    if buckets > MAX_SYMBOLS or words > MAX_SYMBOLS or first > MAX_SYMBOLS:
        raise view.malformed(f"has a hash table of {max(buckets, words, first):,} entries")
    start = table + 16 + 8 * words
    last = max(view.unpack(f"<{buckets}I", start), default=0)
    if last < first:
        return first
    chain = start + 4 * buckets
    for index in range(last, min(last + _elf.LONGEST_CHAIN, MAX_SYMBOLS)):
        if view.unpack("<I", chain + 4 * (index - first))[0] & 1:
            return index + 1
    raise view.malformed("has an unterminated hash table")


def _versions(view: _elf.View, library: _elf.Elf, tags: dict[int, int], strings: _Strings) -> Iterator[str]:
    if DT_VERNEED not in tags:
        return
    at, seen = _elf.file_offset(view, library.segments, tags[DT_VERNEED]), 0
    while True:
        count, first, following = view.unpack("<2xH4xII", at)
        name_at = at + first
        for _ in range(count):
            name, step = view.unpack("<8xII", name_at)
            yield strings[name]
            name_at += step
            seen += 1
            if seen > MAX_VERSIONS:
                raise view.malformed(f"needs more than {MAX_VERSIONS:,} symbol versions")
        if not following:
            return
        at += following
        seen += 1
        if seen > MAX_VERSIONS:
            raise view.malformed("has an unterminated list of symbol versions")
