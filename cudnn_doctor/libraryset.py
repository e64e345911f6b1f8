"""Read the libraries of a cuDNN in full, symbols and device code too, and choose the fix for it."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from . import binaries, pip, records
from .finding import AGAIN, Finding, Fix, finding
from .read import elf as _elf
from .read import files as _files
from .read import libraries as _libraries
from .read.installation import Installation
from .read.libraries import CUDA, FULL, JIT, SUBLIBRARIES, file_name, read_folder
from .read.versions import Need, Version, consistent, dotted, meets, tightest, version_numbers

MAX_CODE = 64 << 10  # bytes of one function

# Programs and libraries of which an image has at least one.
PROGRAMS = ("bin/sh", "bin/busybox", "usr/bin/env", "lib/ld-linux-aarch64.so.1", "lib64/ld-linux-x86-64.so.2")

TOOLKIT = "cuda-toolkit"  # a package whose extras require the libraries of one CUDA

# The extras that require the libraries of CUDA, by the names of their wheels without a suffix.
EXTRAS = {row.package: row.extra for row in CUDA.values() if row.extra}


@dataclass(frozen=True)
class Library(_libraries.Library):
    """A library with its device code."""

    code: binaries.DeviceCode | None = None  # the GPUs that it has code for
    cuda: int = 0  # the CUDA major version of its device code; 0 if unknown


@dataclass(frozen=True)
class LibrarySet(Installation):
    """An installation whose libraries were read in full."""

    libraries: Mapping[str, Library]
    owners: tuple[records.Distribution, ...] = field(default=(), compare=False)  # packages with its files
    stale: tuple[records.Distribution, ...] = field(default=(), compare=False)  # metadata of other files
    needs: tuple[Need, ...] = field(default=(), compare=False)  # requirements that a fix must meet
    others: tuple[Need, ...] = field(default=(), compare=False)  # the same for libraries of CUDA
    sites: tuple[str, ...] = field(default=(), compare=False)  # with it, if its own folder is in none
    unowned: tuple[str, ...] = field(default=(), compare=False)  # libraries that its packages do not have
    advice: str = field(default="", compare=False)  # replaces the fix that installs it again

    @cached_property
    def version(self) -> Version | None:
        """The most frequent version constant of the libraries; if none is left, that of their wheel."""
        wheels = [owner.version for owner in self.owners if owner.name.startswith("nvidia-cudnn")]
        recorded = version_numbers(wheels[0])[:3] if len(wheels) == 1 else ()
        return super().version or (recorded if len(recorded) == 3 else None)

    @property
    def sound(self) -> tuple[Library, ...]:
        """The libraries that could be read."""
        return tuple(library for library in self.libraries.values() if library.error is None)

    @property
    def windows(self) -> bool:
        """Whether it is a cuDNN for Windows."""
        paths = [library.path for library in self.libraries.values()] or [self.folder]
        return all(path.lower().endswith((".dll", "/bin")) for path in paths)

    def file_name(self, part: str = "") -> str:
        """Return the file name of a part."""
        return f"cudnn{'_' if part else ''}{part}64_9.dll" if self.windows else file_name(part)

    @cached_property
    def system_machine(self) -> int:
        """The ``e_machine`` of this machine, or of the programs of the image; 0 if unknown."""
        if self.windows:
            return 0
        if self.root == "/":
            return _elf.machine_here()
        paths = (_files.real(os.path.join(self.root, name), self.root) for name in PROGRAMS)
        return next(filter(None, map(_elf.machine_of, paths)), 0)

    @property
    def world_writable_paths(self) -> list[str]:
        """The parts of it that any user may replace; Windows has other rights."""
        return [] if self.windows else super().world_writable_paths

    @property
    def kind(self) -> str:
        """The set of libraries that it is; a copied part of the full set is an incomplete full set."""
        return JIT if super().kind == JIT else FULL

    @property
    def jit(self) -> bool:
        """Whether it is the small set of libraries, whose engines are all compiled at run time."""
        return self.kind == JIT

    def is_stray(self, library: Library) -> bool:
        """Return whether this version does not have such a library."""
        # Two others must have the version: of a single one, it may be the foreign one.
        row = SUBLIBRARIES.get(library.name)
        if row is None or self.version is None or self.version >= row.earliest:
            return False
        return sum(other.version == self.version for other in self.libraries.values()) > 1

    def belongs(self, library: Library) -> bool:
        """Return whether a library has the SONAME of its part and, if known, the version of this cuDNN."""
        name, own = _files.library_name(library.real), self.version and write(self.version)
        right = library.elf.soname == file_name(library.name) and library.version in (None, self.version)
        return right and (not own or not name or name.version in ("", "9", own))

    @cached_property
    def links_as_text(self) -> dict[str, str]:
        """The small text files that an unpacker wrote in place of links, with the names that they contain."""
        texts = {name.path: _files.link_as_text(name.path) for name in _files.cudnn_files(self.folder)}
        return {path: text for path, text in texts.items() if text}

    @property
    def leftovers(self) -> tuple[str, ...]:
        """The files that a fix must delete: pip leaves unrecorded ones, and fails at links to nothing."""
        wrong = (
            library.path
            for library in self.libraries.values()
            if self.is_stray(library) or (library.error and os.path.islink(library.path))
        )
        gone = _files.dangling(self.folder, self.root)
        wheels = (owner.metadata for owner in self.owners if owner.name.startswith("nvidia-cudnn"))
        lost = (path for metadata in wheels for path in records.lost_links(metadata, self.root))
        return tuple(dict.fromkeys([*wrong, *self.unowned, *filter(None, [gone]), *lost]))

    @property
    def recorders(self) -> list[records.Distribution]:
        """The packages that record libraries of this folder."""
        site = records.site_of(self.folder)
        inside = os.path.relpath(self.folder, site) + "/" if site else "//"
        same = str.lower if self.windows else str  # Windows ignores case
        names = (same(f"{inside}libcudnn"), same(f"{inside}cudnn"))
        return [owner for owner in self.owners if any(same(path).startswith(names) for path in owner.record)]

    @property
    def majors(self) -> dict[str, int]:
        """The CUDA major version of each library for which it is known."""
        # Wheels since CUDA 13 have it in their RUNPATH; libraries of older wheels among them are for CUDA 12.
        paths = {library.name: ":".join(library.elf.runpath) for library in self.sound}
        tags = {name: re.search(r"\.\./cu(\d+)/lib\b", path) for name, path in paths.items()}
        other = 12 if any(tags.values()) else 0
        majors = {}
        for library in self.sound:
            tag, of_wheel = tags[library.name], "../../cublas/lib" in paths[library.name]
            majors[library.name] = library.cuda or (int(tag[1]) if tag else other * of_wheel)
        return {name: cuda for name, cuda in majors.items() if cuda}

    @property
    def cuda(self) -> int:
        """The most frequent CUDA major version of its libraries; 0 if unknown."""
        known = Counter(self.majors.values())
        named = re.search(r"-cu(\d+)", self.owners[0].name) if self.owners else None
        return known.most_common(1)[0][0] if known else int(named[1]) if named else 0

    @property
    def package(self) -> str:
        """The wheel that contains such a cuDNN."""
        return f"nvidia-cudnn-{'jit-' if self.jit else ''}cu{self.cuda or 12}"

    @cached_property
    def repair(self) -> Fix:
        """The fix that installs it again."""
        return Fix(self.advice) if self.advice else _fix(self)

    def finding(
        self, code: str, message: str, *, fix: Mapping[str, str | Sequence[str]] | None = None, **more: Any
    ) -> Finding:
        """Create a finding about these libraries; the paths in its commands are those inside the image."""
        path = more.get("path")
        known = {"path": pip.inside(path, self.root)} if path and self.root != "/" else {}
        made = finding(code, message, **{"repair": self.repair, **more}, fix={**known, **(fix or {})})
        if not self.windows or made.commands == self.repair.commands:
            return made
        return replace(made, commands=pip.windows_commands(made.commands, self.root))

    @property
    def driver_functions(self) -> frozenset[str]:
        """The functions of libcuda that its libraries are linked with."""
        names = {name for library in self.sound for name in library.elf.symbols.undefined}
        return frozenset(filter(re.compile("cu[A-Z]").match, names))


# --- the fix: the same for all findings about a cuDNN ------------------------------------------------------


def _fix(found: LibrarySet) -> Fix:
    """Return the fix that installs this cuDNN again, in the version that all packages require."""
    have = {owner.name: owner.version for owner in found.owners}
    package, needs = target(found), [need for need in found.needs if need.achievable]
    specifiers = list(dict.fromkeys(need.versions for need in needs if need.versions))
    if divided(found):
        return Fix(f"use separate environments: {' and '.join(map(str, needs))}")
    unowned = f"{dotted(found.version)}.*" if found.version and not have else ""
    version = have.get(package, unowned if package == found.package else "")
    other = version and not package.startswith("nvidia-cudnn")  # such as torch, which may contain a cuDNN
    keep = bool(other or (version and all(meets(version, each) for each in specifiers)))
    site = records.site_of(found.folder)
    pin = package + (f"=={version}" if keep else ",".join(tightest(specifiers)))
    if not have and not found.stale and (keep or not needs):
        return AGAIN
    if not site:  # of an installer or of the system
        return Fix(f"install {pin}")
    required = any(need.path and need.package == package for need in needs)
    apart = required and found.jit != ("-jit-" in package)  # wheels of other sets have another folder
    manager = pip.of(site, found.root, found.windows)
    others = sorted(have) if have.keys() - {package} and not apart else []
    broken = {owner.name for owner in found.owners if owner.problem}  # pip cannot uninstall them
    delete = [pip.inside(path, found.root) for path in _removal(found, manager.loose)]
    text = f"install {pin}{' again' if package in have and keep else ''}"
    if others and set(others) != {package}:
        text += f" in place of {' and '.join(each for each in others if each != package)}"
    if manager.loose and other:
        return Fix(text)
    if not others and not delete:
        return Fix(text, manager.install(pin, keep))
    suffix = package.rpartition("-")[2]
    extras = EXTRAS if package.startswith("nvidia-cudnn") else ()  # others, such as torch, are kept
    wheels = [name + (f"-{suffix}" if int(suffix[2:]) < 13 else "") for name in extras]
    lacking = {wheel: companion(found, wheel) for wheel in wheels if not records.installed(site, wheel)}
    pins = dict.fromkeys(each for wheel, each in lacking.items() if each not in ("", wheel))
    commands = manager.replace(pin, delete, [each for each in others if each not in broken], keep, [*pins])
    blas = lacking.get(wheels[0], "") if wheels else ""
    if manager.loose and package not in have and blas:  # no pip adds what another CUDA needs
        if blas.startswith(TOOLKIT):  # which is only known after its installation
            text += f", and {wheels[0]} in the version of {blas}"
        else:
            commands += manager.install(blas)
    return Fix(text, commands)


def companion(found: LibrarySet, wheel: str) -> str:
    """Return the requirement that installs a library of CUDA in the version that all packages require.

    It names cuda-toolkit if only the extras of the required one have the version. Empty if no version suits.
    """
    name, _, suffix = wheel.partition("-cu1")
    cuda = int(f"1{suffix}") if suffix else 13
    kits = [
        need
        for need in found.others
        if EXTRAS.get(name) in re.split(r"[\[\],]", need.package)[1:]
        and consistent([need.versions, f">={cuda},<{cuda + 1}"])
    ]
    needs = kits or [need for need in found.others if need.package == wheel]
    specifiers = list(dict.fromkeys(need.versions for need in needs))
    pin = (kits[0].package if kits else wheel) + ",".join(filter(None, specifiers))
    return pin if consistent(specifiers) else ""


def divided(found: LibrarySet) -> bool:
    """Return whether no cuDNN can meet all requirements, so that no command may replace it."""
    specifiers = [need.versions for need in found.needs if need.achievable]
    return not target(found) or not consistent(specifiers)


def target(found: LibrarySet) -> str:
    """Choose the required wheel, else the installed one for the CUDA on disk; empty if two are required."""
    wanted = {need.package for need in found.needs if need.package}
    names = [owner.name for owner in found.owners or found.stale]
    usual = found.package if found.package in names or not names else names[0]
    return "" if len(wanted) > 1 else next(iter(wanted), usual)


def _removal(found: LibrarySet, loose: bool) -> list[str]:
    """List the files that pip does not delete: metadata, and libraries that no other metadata records."""
    recorded = {path for owner in found.owners for path in owner.record}
    paths = [owner.metadata for owner in found.owners if owner.metadata and (owner.problem or loose)]
    for owner in found.stale:
        site = os.path.dirname(owner.metadata)
        left = (os.path.join(site, path) for path in owner.record if recorded and path not in recorded)
        # A record may contain any path.
        ours = (path for path in left if _files.library_name(path) and os.path.dirname(path) == found.folder)
        paths += [owner.metadata, *filter(os.path.lexists, ours)]
    site = records.site_of(found.folder)
    in_wheel = os.path.relpath(found.folder, site or "/") in records.WHEEL_FOLDERS
    if loose or (in_wheel and any(owner.problem for owner in found.owners)):  # pip deletes none of them
        # They may be links to those of another folder, which must not be overwritten.
        majors = sorted({9, *(name.major for name in _files.cudnn_files(found.folder) if name.major)})
        paths += [os.path.join(found.folder, "../include")]
        if not _files.dangling(found.folder, found.root):  # rm -f fails below a link in a circle
            paths += [os.path.join(found.folder, f"libcudnn*.so.{major}") for major in majors]
    return [*paths, *(path for path in found.leftovers if path not in paths)]


# --- reading -----------------------------------------------------------------------------------------------


def read(folder: str, root: str = "/", *, deleted: bool = False) -> LibrarySet | None:
    """Read the cuDNN 9 of a folder; None if the folder has no file of it, unless ``deleted``."""
    # No library is opened, and damaged files raise no error.
    if not deleted and not any(major_of(name) == 9 for name in _files.cudnn_files(folder)):
        return None
    # A link to a folder that does not exist is a part of the installation, which a fix must delete.
    real = folder if _files.dangling(folder, root) else _files.real(folder, root)
    libraries, extra = read_folder(folder, read_library, root)
    found, shim = LibrarySet(real, libraries, extra, root), libraries.get("")
    if shim and not (shim.error or found.windows or shim.file == file_name() or found.belongs(shim)):
        others = {part: library for part, library in libraries.items() if part}
        found = LibrarySet(real, others, (_files.LibraryName("", "", shim.path), *extra), root)
    owners = records.owners(real)
    live = records.live(owners, write(found.version))
    found = replace(found, owners=live, stale=tuple(owner for owner in owners if owner not in live))
    return replace(found, unowned=tuple(_unowned(found)))


def major_of(name: _files.LibraryName) -> int:
    """Return the major version in a file name, or in the SONAME of a sub-library copied without its links."""
    lost = name.part in SUBLIBRARIES and not name.version and not os.path.islink(name.path)
    return 9 if lost and _libraries.read_library(name.path).elf.soname == file_name(name.part) else name.major


def _unowned(found: LibrarySet) -> Iterator[str]:
    """Yield the libraries that no package records, except copies of recorded ones under other names."""
    if not found.recorders:
        return
    site = records.site_of(found.folder)
    known = {os.path.join(site, path) for owner in found.owners for path in owner.record}
    names = list(_files.cudnn_files(found.folder))
    if found.windows:  # which ignores case
        known = {name.path for name in names if name.path.lower() in set(map(str.lower, known))}
    owned = {name.part: name.path for name in names if name.path in known}
    for name in names:
        if name.path not in known and not _files.equal(name.path, owned.get(name.part, "")):
            yield name.path


def read_library(path: str, root: str = "/", part: str = "") -> Library:
    """Read a library; if that fails, the reason is in ``error``."""
    read_headers = binaries.read_dll if path.lower().endswith(".dll") else _elf.read
    base = _libraries.read_library(path, root, part, read_headers)
    try:
        if base.error:
            raise base.error
        runtime, code = _runtime(base.elf), binaries.read(base.elf)
    except _elf.ElfError as error:
        return Library(part, path, base.real, error)
    cuda = (code.cuda if code else 0) or runtime // 1000
    return Library(part, path, base.real, None, base.elf, base.version, code, cuda)


def write(version: Version | None) -> str:
    """Format a version for messages."""
    return dotted(version) if version else "of unknown version"


def _runtime(library: _elf.Elf) -> int:
    """Find the number that ``cudnnGetCudartVersion`` returns, such as 12090, in its machine code."""
    # Only libcudnn_graph contains it; other libraries forward the call. 0 if it is not found.
    address, size = library.symbols.exports.get("cudnnGetCudartVersion", (None, 0))
    if address is None:
        return 0
    body = library.content(address, min(size, MAX_CODE))
    if library.machine == 183:  # aarch64: the operand of a MOVZ
        words = (word for (word,) in struct.iter_unpack("<I", body[: len(body) // 4 * 4]))
        numbers = [word >> 5 & 0xFFFF for word in words if word & 0x7FE00000 == 0x52800000]
    else:
        numbers = [struct.unpack_from("<I", body, at)[0] for at in range(max(len(body) - 3, 0))]
    return next((number for number in numbers if 11000 <= number < 20000 and number % 10 == 0), 0)
