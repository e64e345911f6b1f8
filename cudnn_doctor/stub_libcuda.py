"""Write a libcuda.so.1 for processes without a driver, whose functions fail or do nothing."""

# From 9.21 on, a library of cuDNN is linked with libcuda.so.1 and cannot be opened without it. To plan a
# graph for a described GPU, cuDNN compiles kernels and loads them by functions that it looks up by name.

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from itertools import accumulate

from .read import files as _files
from .read.elf import machine_here

# return CUDA_ERROR_STUB_LIBRARY (34), by machine: mov eax, 34; ret and mov w0, #34; ret
CODE = {62: bytes.fromhex("b822000000c39090"), 183: struct.pack("<II", 0x52800440, 0xD65F03C0)}
# Write a pointer to the first argument, and return 0. cuDNN rejects a null pointer.
_HANDLE = {
    62: bytes.fromhex("48c7070010000031c0c3909090909090"),
    183: struct.pack("<IIII", 0xD2820001, 0xF9000001, 0x52800000, 0xD65F03C0),
}

# Return 0.
_NOTHING = {62: bytes.fromhex("31c0c39090909090"), 183: struct.pack("<II", 0x52800000, 0xD65F03C0)}

# The functions that cuDNN looks up by name to plan a graph. It compiles kernels and loads them through these.
# Without one of them it has no engines that are compiled at run time, and returns no error.
_LOADS = (
    "cuCtxGetCurrent", "cuKernelGetFunction", "cuLibraryGetKernel", "cuLibraryLoadData", "cuLinkCreate",
    "cuModuleGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx",
)  # fmt: skip
_UNLOADS = ("cuLibraryUnload", "cuLinkDestroy", "cuModuleUnload")
_OTHERS = (
    "cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet", "cuDeviceGetCount",
    "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuKernelGetAttribute",
    "cuKernelSetAttribute", "cuLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx",
    "cuLibraryLoadFromFile", "cuLinkAddData", "cuLinkComplete", "cuOccupancyMaxPotentialClusterSize",
    "cuStreamGetCtx",
)  # fmt: skip

_PAGE = 0x10000  # the largest that Linux has on these machines
_SONAME = "libcuda.so.1"


def in_memory(names: Iterable[str], *, planning: bool = False) -> int:
    """Write the library for this machine to memory, and return its descriptor; no folder is needed.

    With ``planning`` it has all functions that cuDNN looks up to plan graphs. Only for a child process that
    does not use a GPU: it pretends that kernels are loaded.
    """
    import fcntl  # not on Windows, where nothing calls this

    first = _files.in_memory(_SONAME)
    # The child has streams of its own in the places of closed ones.
    file = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(first)
    os.write(file, make(names, machine_here(), planning=planning))
    return file


def make(names: Iterable[str], machine: int, *, planning: bool = False) -> bytes:
    """Return the library, for an ``e_machine`` of ``CODE``."""
    pieces = [CODE[machine], *([_HANDLE[machine], _NOTHING[machine]] if planning else [])]
    code, code_at = b"".join(pieces), 64 + 4 * 56
    fails, *others = zip(accumulate(map(len, pieces[:-1]), initial=code_at), map(len, pieces))
    places = {name: place for names_of, place in zip((_LOADS, _UNLOADS), others) for name in names_of}
    functions = sorted({*names, *places, *(_OTHERS if planning else ())})
    functions = functions or ["cuGetErrorString"]  # a hash table needs a symbol
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in (*functions, _SONAME))
    symbols_at = code_at + len(code)
    place = {name: strings.index(b"\0" + name.encode() + b"\0") + 1 for name in (*functions, _SONAME)}
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", place[name], 0x12, 0, 1, *places.get(name, fails)) for name in functions
    )
    hash_at = symbols_at + len(symbols)
    count = len(functions) + 1
    table = struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)  # one bucket, one long chain
    strings_at = hash_at + len(table)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    tags = [(14, place[_SONAME]), (4, hash_at), (5, strings_at), (6, symbols_at)]
    tags += [(10, len(strings)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    # The linker writes to the dynamic section, so its page is mapped a second time as writable.
    writable, end = dynamic_at + _PAGE, dynamic_at + len(dynamic)
    programs = (
        (1, 5, 0, 0, 0, end, end, _PAGE),
        (1, 6, dynamic_at, writable, writable, len(dynamic), len(dynamic), _PAGE),
        (2, 6, dynamic_at, writable, writable, len(dynamic), len(dynamic), 8),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # no executable stack
    )
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(programs), 64, 0, 0)
    file = header + b"".join(struct.pack("<IIQQQQQQ", *program) for program in programs)
    file += code + symbols + table + strings
    return file + bytes(dynamic_at - len(file)) + dynamic
