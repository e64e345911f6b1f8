"""Write small shared libraries in pure Python, valid for the linker, with the contents that a test needs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudnn_doctor.read.elf import machine_here
from cudnn_doctor.read.libraries import SUBLIBRARIES, file_name

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RUNPATH = 1, 5, 6, 10, 14, 29
DT_GNU_HASH, DT_VERDEF, DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFFC, 0x6FFFFFFE
CONTENT = 64 + 3 * 56  # the first byte after the headers


def make_elf(
    soname: str | None = None,
    needed: Sequence[str] = (),
    constants: Mapping[str, int] | None = None,
    *,
    machine: int | None = None,
    versions: Sequence[str] = (),
    runpath: str = "",
) -> bytes:
    """Return an ELF64 library that exports each constant as a 4-byte data symbol."""
    names = list(constants or {})
    texts = [*names, *needed, *versions, *filter(None, [soname, runpath])]
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in texts)

    def string(text: str) -> int:
        return strings.index(b"\0" + text.encode() + b"\0") + 1

    data = b"".join(struct.pack("<I", (constants or {})[name]) for name in names)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", string(name), 0x11, 0, 1, CONTENT + 4 * index, 4)
        for index, name in enumerate(names)
    )
    tags = [(DT_NEEDED, string(name)) for name in needed] + ([(DT_SONAME, string(soname))] if soname else [])
    tags += [(DT_RUNPATH, string(runpath))] if runpath else []
    parts = {DT_SYMTAB: symbols, DT_GNU_HASH: _gnu_table(names), DT_STRTAB: strings}
    if versions:  # which it needs of the first library
        rows = [struct.pack("<8xII", string(name), 16) for name in versions]
        parts[DT_VERNEED] = struct.pack("<HHIII", 1, len(rows), string(needed[0]), 16, 0) + b"".join(rows)
    return assemble(parts, tags, data=data, machine=machine)


def assemble(
    parts: Mapping[int, bytes],
    tags: Sequence[tuple[int, int]] = (),
    *,
    data: bytes = b"",
    machine: int | None = None,
) -> bytes:
    """Return an ELF64 library of ``data``, tables by the tags that point to them, and other tags."""
    file = bytearray(CONTENT) + data
    dynamic = list(tags)
    for tag, part in parts.items():
        file += bytes(-len(file) % 8)
        dynamic.append((tag, len(file)))
        file += part
    dynamic += [(DT_STRSZ, len(parts.get(DT_STRTAB, b""))), (11, 24), (0, 0)]
    file += bytes(-len(file) % 8)
    start, size = len(file), 16 * len(dynamic)
    file += b"".join(struct.pack("<QQ", *tag) for tag in dynamic)
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine or machine_here(), 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    programs = [
        (PT_LOAD, 6, 0, 0, 0, len(file), len(file), 4096),
        (PT_DYNAMIC, 6, start, start, start, size, size, 8),
        (PT_GNU_STACK, 6, 0, 0, 0, 0, 0, 16),
    ]
    file[:CONTENT] = header + b"".join(struct.pack("<IIQQQQQQ", *program) for program in programs)
    return bytes(file)


def make_defining(*versions: str, machine: int | None = None) -> bytes:
    """Return a library that defines symbol versions."""
    strings = "".join(f"\0{name}" for name in ("", *versions)).encode() + b"\0"
    places = [strings.index(f"\0{name}\0".encode()) + 1 for name in versions]
    rows = [struct.pack("<6xH4xIIII", 1, 20, 28, place, 0) for place in places]
    last = struct.pack("<6xH4xIIII", 1, 20, 0, places[-1], 0)
    return assemble({DT_STRTAB: strings, DT_VERDEF: b"".join(rows[:-1]) + last}, machine=machine)


def make_functions(soname: str, codes: Mapping[str, bytes]) -> bytes:
    """Return a library that exports functions with these machine codes."""
    strings, symbols, data = b"\0" + soname.encode() + b"\0", bytes(24), b""
    for name, code in codes.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, CONTENT + len(data), len(code))
        strings, data = strings + name.encode() + b"\0", data + code
    parts = {DT_SYMTAB: symbols, DT_GNU_HASH: _gnu_table(list(codes)), DT_STRTAB: strings}
    library = bytearray(assemble(parts, [(DT_SONAME, 1)], data=data))
    struct.pack_into("<I", library, 64 + 4, 7)  # the segment can be executed too
    return bytes(library)


def gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) % 2**32
    return value


def _gnu_table(names: list[str]) -> bytes:
    """Return a hash table with one bucket, and a filter that matches all names."""
    chain = [gnu_hash(name) & ~1 for name in names[:-1]] + [gnu_hash(name) | 1 for name in names[-1:]]
    return struct.pack(f"<IIIIQI{len(chain)}I", 1, 1, 1, 0, 2**64 - 1, bool(names), *chain)


def make_cudnn(
    folder: Path,
    version: str = "9.27.0",
    *,
    without: Sequence[str] = (),
    cuda: int = 0,
    system: Mapping[str, Sequence[str]] | None = None,
    machine: int | None = None,
    runpath: str = "$ORIGIN",
    **versions: str,
) -> Path:
    """Write a complete cuDNN of small libraries, and return its ``libcudnn.so.9``."""
    code = 0x52800000 | cuda * 1000 << 5 if machine == 183 else cuda * 1000  # a MOVZ, or the operand of a MOV
    runtime = {"cudnnGetCudartVersion": code} if cuda else {}
    folder.mkdir(parents=True, exist_ok=True)
    for row in SUBLIBRARIES.values():
        if row.name not in without:
            constants = {row.constant: packed(versions.get(row.name, version))} if row.constant else {}
            constants |= runtime if row.name == "graph" else {}
            name = file_name(row.name)
            linked = (system if row.name == "graph" else None) or {}
            versions_of = [each for texts in linked.values() for each in texts]
            _write(
                folder / name,
                make_elf(
                    name,
                    [*linked],
                    constants=constants,
                    versions=versions_of,
                    machine=machine,
                    runpath=runpath,
                ),
            )
    shim = folder / "libcudnn.so.9"
    _write(
        shim, make_elf("libcudnn.so.9", constants=dict.fromkeys(runtime, 0), machine=machine, runpath=runpath)
    )
    return shim


NOT_JIT = [name for name, row in SUBLIBRARIES.items() if not row.jit]


def make_jit(folder: Path, version: str = "9.27.0", **more: Any) -> Path:
    """Write a cuDNN whose engines are all compiled at run time, and return its ``libcudnn.so.9``."""
    return make_cudnn(folder, version, without=NOT_JIT, **more)


def make_header(path: Path, version: str) -> Path:
    """Write a ``cudnn_version.h`` of a version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split("."), strict=True)
    path.write_text("".join(f"#define CUDNN_{part} {number}\n" for part, number in parts))
    return path


def packed(version: str) -> int:
    """Pack a version as cuDNN's libraries hold it."""
    major, minor, patch = map(int, version.split("."))
    return major << 16 | minor << 8 | patch


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o644)  # independent of the umask
