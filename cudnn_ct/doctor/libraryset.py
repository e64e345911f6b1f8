"""The libraries of one cuDNN: which there are in a folder, and what each says about itself."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from dataclasses import dataclass, field

from .. import _elf, _files
from .._installation import SUBLIBRARIES, Version, version_in
from . import fatbin, symbols
from .finding import REINSTALL

__all__ = ["Library", "LibrarySet", "read", "read_library", "write"]


@dataclass(frozen=True)
class Library:
    """One library file and what was read from it; ``error`` says why nothing could be.

    Attributes
    ----------
    name : str
        Its part; empty for libcudnn.so.
    path, real : str
        The file as it lies in the folder, and where links lead.
    version : tuple or None
        What its constant says.
    cuda : int
        The CUDA major version it was built for, by its device code; 0 where that does not tell.
    """

    name: str
    path: str
    real: str
    error: _elf.ElfError | None = None
    elf: _elf.Elf | None = None
    dynamic: symbols.Dynamic | None = None
    code: fatbin.DeviceCode | None = None
    version: Version | None = None
    cuda: int = 0

    @property
    def file(self) -> str:
        """The name of its file."""
        return os.path.basename(self.path)

    @property
    def cuda_tag(self) -> int:
        """The CUDA major version that its RUNPATH names, as wheels since CUDA 13 do; 0 for none."""
        folders = ":".join(self.dynamic.runpath if self.dynamic else ())
        match = re.search(r"\.\./cu(\d+)/lib\b", folders)
        return int(match[1]) if match else 0

    @property
    def of_wheel(self) -> bool:
        """Whether its RUNPATH is that of a wheel."""
        return any("../../cublas/lib" in folder for folder in (self.dynamic.runpath if self.dynamic else ()))


@dataclass(frozen=True)
class LibrarySet:
    """All that lies in one folder of a cuDNN.

    Attributes
    ----------
    folder : str
        The real folder.
    libraries : dict
        By part; the file that cuDNN would open, where there are several.
    extra : tuple of _files.LibraryName
        Other files with the name of a part that is there already, and another content.
    root : str
        What stands for ``/``: the folder of an image, or ``/`` itself.
    reinstall : str
        The command that installs it again.
    """

    folder: str
    libraries: dict[str, Library]
    extra: tuple[_files.LibraryName, ...] = ()
    root: str = "/"
    reinstall: str = field(default=REINSTALL, compare=False)

    @property
    def shim(self) -> Library | None:
        """libcudnn.so itself, which programs are linked with and which opens the others."""
        return self.libraries.get("")

    @property
    def sound(self) -> tuple[Library, ...]:
        """The libraries that could be read."""
        return tuple(library for library in self.libraries.values() if library.error is None)

    @property
    def version(self) -> Version | None:
        """The version that most of its constants have, of two equally frequent the graph's."""
        known = Counter(library.version for library in self.sound if library.version)
        return known.most_common(1)[0][0] if known else None

    @property
    def majors(self) -> dict[str, int]:
        """The CUDA major version of every library that tells one."""
        tagged = any(library.cuda_tag for library in self.sound)
        guess = {
            library.name: library.cuda or library.cuda_tag or (12 if tagged and library.of_wheel else 0)
            for library in self.sound
        }
        return {name: cuda for name, cuda in guess.items() if cuda}

    @property
    def cuda(self) -> int:
        """The CUDA major version that most of its libraries have; 0 where none tells."""
        known = Counter(self.majors.values())
        return known.most_common(1)[0][0] if known else 0

    @property
    def package(self) -> str:
        """The wheel that such a cuDNN comes in."""
        return f"nvidia-cudnn-cu{self.cuda or 12}"


def read(folder: str, root: str = "/") -> LibrarySet | None:
    """Read the cuDNN 9 of a folder; None when no file there is called like one.

    Nothing is opened as a library, and no damaged file raises anything.
    """
    found: dict[str, list[_files.LibraryName]] = {}
    for name in _files.cudnn_files(folder):
        if name.major in (0, 9):
            found.setdefault(name.part, []).append(name)
    if not any(name.major == 9 for names in found.values() for name in names):
        return None
    libraries, extra = {}, []
    for part, names in found.items():
        names.sort(key=_preference)
        library = read_library(names[0].path, root, part)
        libraries[part] = library
        extra += [name for name in names[1:] if not _same(_files.real(name.path, root), library.real)]
    order = ["", *SUBLIBRARIES]
    rows = sorted(libraries.items(), key=lambda row: order.index(row[0]) if row[0] in order else len(order))
    return LibrarySet(_files.real(folder, root), dict(rows), tuple(extra), root)


def read_library(path: str, root: str = "/", part: str = "") -> Library:
    """Read one library; what keeps it from being read is in ``error``."""
    where = _files.real(path, root)
    try:
        headers = _elf.read(where)
        dynamic = symbols.read(headers)
        code = fatbin.read(headers)
        version = version_in(headers, part)
        cuda = (code.cuda if code else 0) or _runtime(headers, dynamic) // 1000
    except _elf.ElfError as error:
        return Library(part, path, where, error)
    return Library(part, path, where, None, headers, dynamic, code, version, cuda)


def write(version: Version | None) -> str:
    """Write a version as people do."""
    return ".".join(map(str, version)) if version else "of unknown version"


def _preference(name: _files.LibraryName) -> tuple[int, list[int]]:
    """The name that programs ask for first, then the longest, newest ones."""
    exact = {"9": 0, "": 2}.get(name.version, 1)
    return exact, [-int(digits) for digits in name.version.split(".") if digits]


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


def _runtime(library: _elf.Elf, dynamic: symbols.Dynamic) -> int:
    """Find the number that ``cudnnGetCudartVersion`` returns, such as 12090, in its machine code.

    Only libcudnn_graph has it; others forward the call. 0 where it is not seen.
    """
    function = dynamic.exports.get("cudnnGetCudartVersion")
    if function is None:
        return 0
    body = symbols.code(library, function)
    if library.machine == 183:  # aarch64: the operand of a MOVZ
        words = (word for (word,) in struct.iter_unpack("<I", body[: len(body) // 4 * 4]))
        numbers = [word >> 5 & 0xFFFF for word in words if word & 0x7FE00000 == 0x52800000]
    else:
        numbers = [struct.unpack_from("<I", body, at)[0] for at in range(max(len(body) - 3, 0))]
    return next((number for number in numbers if 11000 <= number < 20000 and number % 10 == 0), 0)
