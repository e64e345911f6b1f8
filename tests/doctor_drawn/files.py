"""Files of drawn sites: hard links of real libraries, which no operation may write through."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

# Sections that only running code reads: a reader of headers and tables does not need their contents.
BULK_SECTIONS = (b".text", b".nv_fatbin", b".rodata", b".eh_frame", b".data", b".debug")
PIECE = 1 << 20


def place(source: Path, target: Path) -> None:
    """Put a file at ``target`` as a hard link, or as a copy if the file systems differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def place_tree(source: Path, target: Path) -> None:
    """Put every file of a folder below ``target``."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            place(path, target / path.relative_to(source))


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def own(path: Path) -> None:
    """Replace a hard link by a private copy, whose mode and contents can be changed."""
    copy = path.with_name(path.name + ".own")
    shutil.copy2(path, copy)
    os.replace(copy, path)


def write(path: Path, data: bytes) -> None:
    """Write a new file in place of the old one; other hard links of the old one keep their contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    """Keep the first ``size`` bytes of a file; those after the first megabyte become a hole."""
    with path.open("rb") as stream:
        head = stream.read(min(size, PIECE))
    write(path, head)
    os.truncate(path, size)


def skeleton(source: Path, target: Path, edits: dict[bytes, bytes] | None = None) -> None:
    """Write a sparse file of the same size with the headers and tables of an ELF file, without its code.

    ``edits`` replaces strings of the tables by others of the same length.
    """
    with source.open("rb") as stream:
        header = stream.read(64)
        offset, entry, number, names = (
            struct.unpack_from("<Q", header, 40)[0],
            *struct.unpack_from("<HHH", header, 58),
        )
        stream.seek(offset)
        table = stream.read(entry * number)
        rows = [struct.unpack_from("<IIQQQQ", table, entry * row) for row in range(number)]
        stream.seek(rows[names][4])
        strings = stream.read(rows[names][5])
        pieces = [(0, 4096), (offset, len(table))]
        for name, kind, _, _, start, size in rows:
            bulk = strings[name:].split(b"\0", 1)[0].startswith(BULK_SECTIONS)
            if kind not in (0, 8) and (not bulk or size <= PIECE):  # SHT_NULL and SHT_NOBITS have no bytes
                pieces.append((start, size))
        copies = []
        for start, size in pieces:
            stream.seek(start)
            data = stream.read(size)
            for old, new in (edits or {}).items():
                data = data.replace(old, new)
            copies.append((start, data))
    whole = source.stat().st_size
    remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for start, data in copies:
            out.seek(start)
            out.write(data)
        out.truncate(whole)
