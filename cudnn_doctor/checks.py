"""Check one cuDNN by headers, symbols and device code, and by what a user requires; no library is opened."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from . import libraryset, pip, records
from .finding import Finding, Fix, finding
from .libraryset import Library, LibrarySet, write
from .read import elf as _elf
from .read import files as _files
from .read.libraries import SUBLIBRARIES, file_name, read_library, required
from .read.versions import Need, consistent, dotted, meets

# Exports of libcudnn_graph that libcudnn does not forward: not part of the interface of cuDNN.
INNER = {
    "cudnnGetLibConfig", "cudnnGetModuleForDescriptor", "cudnnGetTime", "cudnnGetTimeDiffString",
    "cudnnSnprintf",
}  # fmt: skip

# The libraries that export symbols to other libraries: without one of them, its symbols are missing too.
OFFERING = {"graph", "ops", "cnn", "adv", "ext"}

# The codes for files that cannot be read, by the kind of error; all other kinds are damaged-library.
FILE_CODES = {
    "missing": "broken-link",
    "unreadable": "unreadable-library",
    "class": "foreign-machine",
    "machine": "foreign-machine",
}


def check_files(found: LibrarySet) -> Iterator[Finding]:
    """Check that each file is a library for this machine, and that its name is that of the library."""
    machines = [library.elf.machine for library in found.sound]
    usual = found.system_machine or max(set(machines), key=machines.count, default=0)
    for library in found.libraries.values():
        if library.error:
            kind = library.error.kind
            link = kind == "malformed" and os.path.islink(library.path) and not os.path.exists(library.path)
            code = "broken-link" if link else FILE_CODES.get(kind, "damaged-library")
            message = str(library.error).partition("; ")[0]
            yield found.finding(code, message, path=library.path, kind=kind)
        elif library.elf.machine != usual:
            name = _elf.MACHINES.get(library.elf.machine, f"machine {library.elf.machine}")
            text = f"{library.path} is for {name}"
            yield found.finding("foreign-machine", text, path=library.path, machine=name)
        elif _misnamed(found, library):
            soname = library.elf.soname or "a library without a name"
            text = f"{library.path} is {soname}"
            yield found.finding("wrong-library", text, path=library.path, soname=library.elf.soname)


def check_complete(found: LibrarySet) -> Iterator[Finding]:
    """Check that no library is missing, and that this version has all that exist."""
    for part in found.missing:
        name = found.file_name(part)
        unused = [os.path.basename(extra.path) for extra in found.extra if extra.part == part]
        why = f"cuDNN {write(found.version)} does not search for" if part else "another cuDNN provides"
        text = f"{name} is not in {found.folder}" + (f", and {why} {unused[0]}" if unused else "")
        yield found.finding("missing-library", text, path=os.path.join(found.folder, name))
    for library in found.libraries.values():
        if found.is_stray(library):
            version, earliest = write(found.version), write(SUBLIBRARIES[library.name].earliest)
            text = f"{library.path} does not belong to cuDNN {version}: the first with it is {earliest}"
            paths = [] if found.recorders or found.windows else _names_of(found, library.name)
            fix = {"path": [pip.inside(path, found.root) for path in paths]} if paths[1:] else {}
            yield found.finding("stray-library", text, path=library.path, version=version, fix=fix)


def check_needed(found: LibrarySet) -> Iterator[Finding]:
    """Check that libraries with which others are linked have the name that the linker searches for."""
    # cuDNN opens its libraries by other names, too; a process that opens another one first cannot load it.
    needed = {name for library in found.sound for name in library.elf.needed}
    shim = found.libraries.get("")
    for part, library in found.libraries.items() if shim and shim.file == found.file_name() else ():
        name = found.file_name(part)
        path = os.path.join(found.folder, name)
        if name in needed and library.file != name and not os.path.lexists(path):
            text = f"{found.folder} has {library.file}, but no {name}, with which other libraries are linked"
            if found.recorders:
                yield found.finding("missing-library", text, path=path)
            else:
                link = shlex.quote(os.path.join(pip.inside(found.folder, found.root), name))
                commands = [f"ln -sf {library.file} {link}"]
                yield finding("lost-link", text, path=path, file=library.file, commands=commands)


def check_names(found: LibrarySet) -> Iterator[Finding]:
    """Check that the names of each library lead to one file: the one of this version, if one is named so."""
    own = write(found.version)
    for part in () if found.recorders else found.libraries:
        path, right = os.path.join(found.folder, found.file_name(part)), _named(found, part)
        if os.path.islink(path) and right and not _files.equal(_files.real(path, found.root), right):
            text = f"{path} is a link to {os.readlink(path)}, and not to {os.path.basename(right)}"
            yield found.finding("wrong-link", text, path=path, fix={"file": os.path.basename(right)})
    shim = found.libraries.get("")
    certain = shim is not None and shim.file == found.file_name()  # else the version may be the other one
    for name in _files.cudnn_files(found.folder):
        first = found.libraries.get(name.part)
        right = _named(found, name.part) or (first.real if first else "")
        link = os.path.islink(name.path) or _files.link_as_text(name.path)
        regular = name.major in (0, 9) and not link
        alone = (
            not link and right not in ("", name.path) and name.version in ("", "9") and not found.recorders
        )
        if alone and (error := read_library(name.path, found.root).error):
            shell, target = shlex.quote(pip.inside(name.path, found.root)), os.path.basename(right)
            commands = [*[f"rmdir {shell}"] * os.path.isdir(name.path), f"ln -sfn {target} {shell}"]
            text = f"{str(error).partition('; ')[0]}; {target} is next to it"
            yield found.finding("damaged-library", text, path=name.path, commands=commands)
        elif regular and right and not _files.equal(name.path, right):
            text = f"{name.path} and {right} are two different files of one library"
            unused = certain and name.version not in (own, "9", "")
            commands = _without(found, name.path, os.path.basename(right)) if unused else []
            yield finding("two-files", text, path=name.path, other=right, commands=commands)


def check_links(found: LibrarySet) -> Iterator[Finding]:
    """Check that libcudnn has the name by which programs open it, which is often a link."""
    shim, texts = found.libraries.get(""), found.links_as_text
    if not shim or found.windows or (shim.file == found.file_name() and not texts):
        return
    text = f"{found.folder} has {shim.file}, but no {found.file_name()}, which programs open"
    path = os.path.join(found.folder, found.file_name())
    if texts:
        path = path if path in texts else min(texts)
        text = f"{len(texts)} files of {found.folder} are texts in place of links, such as {path}"
    mixed = shim.path in (each.evidence["path"] for each in check_symbols(found))
    if found.recorders or mixed or not found.belongs(shim):  # a link would name another library
        yield found.finding("missing-library", text, path=path)
        return
    folder = pip.inside(found.folder, found.root)
    links = {os.path.basename(link): target for link, target in texts.items()}
    for part, library in found.libraries.items():
        if found.belongs(library) and not os.path.lexists(os.path.join(found.folder, found.file_name(part))):
            links[found.file_name(part)] = library.file
    commands = [
        f"ln -sf {shlex.quote(target)} {shlex.quote(os.path.join(folder, name))}"
        for name, target in links.items()
    ]
    yield finding("lost-link", text, path=path, file=shim.file, links=[*links], commands=commands)


def check_versions(found: LibrarySet) -> Iterator[Finding]:
    """Check that all version constants are equal."""
    for library in found.sound:
        if library.version and library.version != found.version:
            version, expected = write(library.version), write(found.version)
            text = f"{library.file} is {version} in a cuDNN {expected}"
            yield found.finding("mixed-versions", text, path=library.path, version=version, expected=expected)


def check_symbols(found: LibrarySet) -> Iterator[Finding]:
    """Check that all imported symbols are exported, and that libcudnn forwards all functions."""
    members = [library for library in found.sound if not found.is_stray(library)]
    exports = {library.name: set(library.elf.symbols.exports) for library in members}
    if OFFERING.intersection(required(found.version, found.kind, found.windows)) - exports.keys():
        return  # reported as missing already, which explains all missing symbols
    everything = set().union(*exports.values())
    for library in members:
        wanted = {name for name in library.elf.symbols.undefined if "cudnn" in name}
        if missing := sorted(wanted - everything):
            yield _unresolved(found, library, missing, "needs {} symbols that no other library has")
    odd = {name for name, cuda in found.majors.items() if name and cuda != found.cuda}
    # The shim of a JIT cuDNN is that of the full set. A library for another CUDA may lack functions.
    if "" not in exports or found.missing or found.jit or odd & exports.keys():
        return
    shim, parts = found.libraries[""], set().union(*(names for name, names in exports.items() if name))
    mine = {name for name in exports[""] if _public(name)}
    if missing := sorted(mine - parts):
        yield _unresolved(found, shim, missing, "forwards {} functions that no other library has")
    elif missing := sorted({name for name in parts if _public(name)} - mine - INNER):
        yield _unresolved(found, shim, missing, "lacks {} functions of the other libraries")


def check_cuda(found: LibrarySet) -> Iterator[Finding]:
    """Check that all libraries were built for the same CUDA."""
    for name, major in found.majors.items():
        library = found.libraries[name]
        if major != found.cuda and not found.is_stray(library):
            text = f"{library.file} was built for CUDA {major}, most other libraries for CUDA {found.cuda}"
            yield found.finding("mixed-cuda", text, path=library.path, cuda=major, expected=found.cuda)


def check_code(found: LibrarySet) -> Iterator[Finding]:
    """Check that no tool has overwritten device code with zeros."""
    for library in found.sound:
        if library.code and (library.code.zeroed or library.code.blank):
            archs = ", ".join(f"{arch / 10:.1f}" for arch in sorted(library.code.zeroed))
            part = f" for compute capability {archs}" if archs else ""  # unknown if its header is zeros too
            text = f"code of {library.file}{part} is overwritten with zeros"
            yield found.finding("zeroed-code", text, path=library.path, zeroed=sorted(library.code.zeroed))


def check_access(found: LibrarySet) -> Iterator[Finding]:
    """Check that all users can read the files, and that the file system allows to load libraries."""
    kept: dict[str, list[str]] = {}
    top, path = _shared_below(found), os.path.join(found.folder, found.file_name())
    for library in () if found.windows else found.sound or (Library("", path, path),):  # which a fix installs
        blockers = (*_files.private(library.real, top), *_files.private(library.path, top))
        for blocker in dict.fromkeys(blockers):
            kept.setdefault(blocker, []).append(library.file)
    for blocker, names in kept.items():
        more = f" and {len(names) - 1} more" if names[1:] else ""
        text = f"only its owner or group can read {names[0]}{more}: see the mode of {blocker}"
        yield found.finding("private-file", text, path=blocker, libraries=names)
    if paths := found.world_writable_paths:
        more = f" and {len(paths) - 1} more" if paths[1:] else ""
        text = f"any user can write {paths[0]}{more}"
        inside = [pip.inside(path, found.root) for path in paths]
        yield found.finding("world-writable", text, path=paths[0], fix={"paths": inside})
    if found.root == "/" and _files.noexec(found.folder):
        yield finding("noexec-mount", f"{found.folder} is on a file system with noexec", path=found.folder)


CHECKS = (
    check_files, check_complete, check_needed, check_names, check_links, check_versions, check_symbols,
    check_cuda, check_code, check_access,
)  # fmt: skip


def coverage(found: LibrarySet) -> tuple[frozenset[int], frozenset[int]]:
    """Return the compute capabilities for which all libraries with device code have SASS, and PTX."""
    # The intersection, because one library may have code for GPUs that the others no longer support.
    codes = [
        library.code
        for library in found.sound
        if library.code and library.name in SUBLIBRARIES and SUBLIBRARIES[library.name].computes
    ]
    if not codes:
        return frozenset(), frozenset()
    sass = frozenset.intersection(*(code.machine_code for code in codes))
    ptx = frozenset.intersection(*(frozenset({max(code.ptx, default=0)}) for code in codes))
    return sass, ptx - {0}


def _shared_below(found: LibrarySet) -> str:
    """Return the folder below which all users must be able to enter folders; empty if unknown."""
    # Links lead out of it, and a home folder is its owner's.
    inside, site = pip.inside(found.folder, found.root), records.site_of(found.folder)
    if found.root != "/":
        return "" if inside.startswith(("/root/", "/home/")) else found.root
    if not found.folder.startswith(site or "//"):
        return ""
    layout = re.fullmatch(r"(.*(?<!/\.local))/lib(?:64)?/python3[^/]*/[a-z]+-packages", site)
    return os.path.dirname(layout[1]) if layout else site


def _unresolved(found: LibrarySet, library: Library, missing: list[str], what: str) -> Finding:
    count, first = len(missing), missing[:3]
    why = f"it {what.format(count)}, such as {first[0]}"
    text = f"{library.file} has another version than the other libraries: {why}"
    return found.finding("unresolved-symbols", text, path=library.path, symbols=count, first=first)


def _without(found: LibrarySet, path: str, right: str) -> list[str]:
    """Return the commands that delete a file and the links that name its version, and set others right."""
    links = (name for name in _files.cudnn_files(found.folder) if os.path.islink(name.path))
    leading = [name for name in links if _files.real(name.path, found.root) == path]
    numbered = [name.path for name in leading if name.version not in ("", "9")]
    others = [name.path for name in leading if name.path not in numbered]
    quoted = [shlex.quote(pip.inside(each, found.root)) for each in (path, *numbered)]
    commands = [f"rm -f {' '.join(quoted)}"]
    return commands + [f"ln -sfn {right} {shlex.quote(pip.inside(each, found.root))}" for each in others]


def _names_of(found: LibrarySet, part: str) -> list[str]:
    """List the file of a part and the links to it, which archives and packages of systems have."""
    names = (name for name in _files.cudnn_files(found.folder) if name.major in (0, 9))
    return [name.path for name in names if name.part == part]


def _named(found: LibrarySet, part: str) -> str:
    """Return the file whose name has the full version of this cuDNN; empty if none exists."""
    path = os.path.join(found.folder, f"{file_name(part).rpartition('.')[0]}.{write(found.version)}")
    return _files.real(path, found.root) if os.path.isfile(_files.real(path, found.root)) else ""


def _public(name: str) -> bool:
    return name.startswith("cudnn") and name[5:6].isupper()


def _misnamed(found: LibrarySet, library: Library) -> bool:
    """Return whether the name in a library is not that of its file."""
    soname = library.elf.soname or ""
    soname = soname.lower() if found.windows else soname  # which ignores case
    return library.name in ("", *SUBLIBRARIES) and soname != found.file_name(library.name)


# --- requirements of the user ------------------------------------------------------------------------------

NEEDED = ("ops", "cnn", "adv")  # libraries with device code that every operation or its fallback uses


@dataclass(frozen=True)
class Requirements:
    """Requirements for a cuDNN; unset ones are not checked."""

    expect: tuple[int, ...] = ()  # a version of one to three numbers; (9, 27) means any 9.27
    minimum: tuple[int, ...] = ()
    maximum: tuple[int, ...] = ()
    cuda: int = 0  # the CUDA major version
    archs: tuple[int, ...] = ()  # compute capabilities that must be supported: 86 is 8.6
    driver: bool = False  # whether there must be a driver
    gpu: bool = False

    def contradiction(self) -> str:
        """Return which requirements contradict each other; empty if none do."""
        versions = [need.versions for need in self.needs]
        return "" if consistent(versions) else f"the versions {' and '.join(versions)} exclude each other"

    @property
    def needs(self) -> tuple[Need, ...]:
        """The wheels that it allows."""
        upper = (*self.maximum[:-1], self.maximum[-1] + 1) if self.maximum else ()
        bounds = ((self.expect, "=={}.*"), (self.minimum, ">={}"), (upper, "<{}"))
        versions = [specifier.format(dotted(bound)) for bound, specifier in bounds if bound]
        package = f"nvidia-cudnn-cu{self.cuda}" if self.cuda else ""
        return tuple(Need(package, each, "this check") for each in versions or [""] * bool(package))


def check_requirements(found: LibrarySet, asked: Requirements) -> Iterator[Finding]:
    """Report the requirements that the libraries do not meet."""
    version, path = write(found.version), found.folder
    for expected in (need.versions for need in asked.needs if need.versions):
        if not found.version or not meets(version, expected):
            text = f"cuDNN {version} of {path} does not meet the requirement {expected}"
            yield found.finding("unexpected-version", text, path=path, version=version, expected=expected)
    if asked.cuda and found.cuda != asked.cuda:
        have = f"is for CUDA {found.cuda}" if found.cuda else "has an unknown CUDA version"
        text = f"the cuDNN of {found.folder} {have}, not for CUDA {asked.cuda}"
        shown: dict[str, Any] = {"path": found.folder, "cuda": found.cuda, "expected": asked.cuda}
        yield found.finding("unexpected-cuda", text, **shown)
    for arch in asked.archs:
        yield from check_arch(found, arch)


def check_arch(found: LibrarySet, arch: int) -> Iterator[Finding]:
    """Check that all libraries have code for a GPU."""
    sass, ptx = coverage(found)
    where = f"cuDNN {write(found.version)} of {found.folder}"
    shown: dict[str, Any] = {
        "path": found.folder,
        "compute_capability": f"{arch / 10:.1f}",
        "covered": sorted(sass & REAL),
    }
    if arch in sass:
        return
    if not sass:
        message = f"{where} has device code for unknown GPUs"
        yield finding("no-gpu-code", message, repair=found.repair, **shown)
        return
    jit = any(have <= arch for have in ptx)
    message = f"{where} has no {'machine ' * jit}code for compute capability {arch / 10:.1f}"
    message += f", only PTX of {max(ptx) / 10:.1f}" if jit else ""
    code = "jit-for-gpu" if jit else "no-gpu-code"
    yield finding(code, message, repair=_suited(found, arch, sass), **shown)


@lru_cache(maxsize=16)
def lacks_code(libraries: tuple[tuple[str, str], ...], arch: int) -> str:
    """Return why a cuDNN has no code for a GPU, in one line; empty if it has, or if its code cannot be read.

    ``libraries`` has the names and paths of the libraries of one folder. Only those that every operation
    needs are read, in milliseconds; the engines have 500 MB.
    """
    parts = {name: libraryset.read_library(path, part=name) for name, path in libraries if name in NEEDED}
    found = LibrarySet(os.path.dirname(libraries[0][1]), parts)
    if all(library.code.runs_on(arch) for library in found.sound if library.code):
        return ""
    lacking = (each for each in check_arch(found, arch) if each.code == "no-gpu-code")
    return next((f"{each.message}; {each.advice}" for each in lacking), "")


# The compute capabilities of existing GPUs, for reports.
REAL = frozenset({50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121})


def _suited(found: LibrarySet, arch: int, sass: frozenset[int]) -> Fix:
    if arch < 50:
        return Fix("cuDNN 9 supports no GPU of compute capability below 5.0")
    codes = [library.code for library in found.sound if library.code]
    zeroed = {have for code in codes for have in code.zeroed if have <= arch and have // 10 == arch // 10}
    if zeroed or any(code.blank for code in codes):  # the same version has code for this GPU
        return found.repair
    major, minor, _ = found.version or (9, 0, 0)
    need = Need("", f">={major}.{minor + 1}", f"compute capability {arch / 10:.1f}")
    if arch < min(sass):  # 9.11 dropped all GPUs before 7.5; CUDA 13 came later
        need = need._replace(package="nvidia-cudnn-cu12", versions="<9.11")
    return replace(found, needs=(*found.needs, need)).repair
