"""Write small DLLs of Windows in pure Python, with the tables that the doctor reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudnn_doctor.read.libraries import SUBLIBRARIES
from tests.elf_files import packed

BASE = 0x1000  # the address of the only section, at this offset of the file
AMD64, ARM64, I386 = 0x8664, 0xAA64, 0x14C


def make_pe(
    name: str,
    constants: Mapping[str, int] | None = None,
    imports: Mapping[str, Sequence[str]] | None = None,
    *,
    machine: int = AMD64,
    magic: int = 0x20B,
    signature: int = 16,
) -> bytes:
    """Return a DLL that exports each constant as a 4-byte symbol and imports functions of other DLLs."""
    data = bytearray()

    def put(part: bytes) -> int:
        data.extend(bytes(-len(data) % 8))
        data.extend(part)
        return BASE + len(data) - len(part)

    def text(words: str) -> int:
        return put(words.encode() + b"\0")

    constants = dict(sorted((constants or {}).items()))
    places = [put(struct.pack("<I", value)) for value in constants.values()]
    functions = put(struct.pack(f"<{len(places)}I", *places))
    names = put(struct.pack(f"<{len(places)}I", *map(text, constants)))
    ordinals = put(struct.pack(f"<{len(places)}H", *range(len(places))))
    table = (0, 0, 0, text(name), 1, len(places), len(places), functions, names, ordinals)
    exports = put(struct.pack("<10I", *table))
    rows = []
    for library, wanted in (imports or {}).items():
        hints = [put(b"\0\0" + each.encode() + b"\0") for each in wanted]
        thunks = put(struct.pack(f"<{len(hints) + 1}Q", *hints, 0))
        rows.append(struct.pack("<5I", thunks, 0, 0, text(library), thunks))
    imported = put(b"".join(rows) + bytes(20))
    directories = [(exports, 40), (imported, 20 * len(rows) + 20), (0, 0), (0, 0)]
    directories += [(BASE + len(data), signature), *[(0, 0)] * 11]
    header = b"MZ" + bytes(58) + struct.pack("<I", 64)
    header += struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 1, 0, 0, 0, 240, 0x2022)
    header += struct.pack("<H106xI", magic, 16) + b"".join(struct.pack("<II", *row) for row in directories)
    header += struct.pack("<8sIIII16x", b".rdata", len(data), BASE, len(data), BASE)
    return header.ljust(BASE, b"\0") + bytes(data) + bytes(signature)


def make_cudnn(folder: Path, version: str = "9.20.0", cuda: int = 12, without: Sequence[str] = ()) -> Path:
    """Write a complete cuDNN of small DLLs, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    old = tuple(map(int, version.split("."))) < (9, 21, 0)
    for row in SUBLIBRARIES.values():
        if row.name not in without and not (old and row.name in ("ext", "engines_tensor_ir")):
            constants = {row.constant: packed(version)} if row.constant else {}
            if row.name == "graph":
                constants |= {"cudnnGetCudartVersion": cuda * 1000, f"cudnn_inner_{version}": 1}
            imports = {} if row.name == "graph" else {"cudnn_graph64_9.dll": [f"cudnn_inner_{version}"]}
            name = f"cudnn_{row.name}64_9.dll"
            (folder / name).write_bytes(make_pe(name, constants, imports))
    shim = make_pe("cudnn64_9.dll", {"cudnnGetCudartVersion": 0})
    (folder / "cudnn64_9.dll").write_bytes(shim)
    return folder
