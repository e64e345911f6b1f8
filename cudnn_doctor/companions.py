"""Check the libraries that cuDNN and its consumers open or are linked with, as the linker finds them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from . import pip, records, search
from .checks import FILE_CODES
from .finding import Finding, Fix, Severity, finding
from .libraryset import TOOLKIT, LibrarySet, companion, divided, write
from .read import elf as _elf
from .read import files as _files
from .read.find import SYSTEM_FOLDERS, LibrarySpec, SearchContext, folders_of, searched
from .read.libraries import COMPANIONS, CUDA, Library, needs, read_library
from .read.versions import dotted

# Libraries that cuDNN is linked with, their Debian packages, and the names of their symbol versions.
SYSTEM = {
    "libz.so.1": ("zlib1g", ("ZLIB_",)),
    "libstdc++.so.6": ("libstdc++6", ("GLIBCXX_", "CXXABI_")),
    "libgcc_s.so.1": ("libgcc-s1", ("GCC_",)),
}

# Libraries of glibc and of the driver, and cuDNN's own, which other checks examine.
OTHERS = re.compile(r"ld-linux.*|lib(c|m|dl|rt|pthread|cuda|cudnn\w*)\.so(\..*)?")

# Libraries of CUDA that cuDNN or its consumers open by name.
OPENED = {stem: row for stem, row in CUDA.items() if row.missing}

# Errors after which the linker searches the next folder. After all others it fails.
SKIPPED = ("missing", "unreadable", "class", "machine")

# The loader's steps for libraries of CUDA that search folders.
STEPS = ("beside cuDNN", "wheel", "conda", "CUDA toolkit", "system")


def check(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries that cuDNN needs and that are not found or cannot be opened."""
    if found.windows:
        yield from search.check_companions(found)
        return
    machines = {library.elf.machine for library in found.sound}
    if found.system_machine and machines and found.system_machine not in machines:
        return  # the libraries of the system are not those of its own machine
    for stem, row in OPENED.items() if found.cuda else ():
        name = (found.cuda == 11 and row.file_11) or row.file.format(found.cuda)
        wheel = row.package if found.cuda >= 13 else f"{row.package}-cu{found.cuda}"
        who, severity = _user(found, stem, wheel)
        if not who:
            continue
        opened = _opened(found, name, environ)
        if opened:
            yield from _broken(found, opened, row.function)
        else:
            # The environment of an image, which is unknown, may name the folder.
            unsure = row.missing == "missing-cublaslt" and found.root != "/"
            text = f"{who} needs {name}, which was not found"
            yield _missing(found, row.missing, text, name, wheel, Severity.WARNING if unsure else severity)
        if opened and stem == "libnvrtc":
            for each in _check_builtins(found, opened, wheel, severity):
                folder = os.path.dirname(opened.path)
                instead = _is_added(found, folder, environ) and each.code == "missing-nvrtc"
                fix = f"remove {folder} from LD_LIBRARY_PATH"
                yield replace(each, fix=fix, commands=()) if instead else each
    for name in sorted({name for library in found.sound for name in library.elf.needed}):
        if OTHERS.fullmatch(name):
            continue
        if opened := _opened(found, name, environ):
            yield from _broken(found, opened)
            yield from _check_versions(found, opened)
        else:
            yield missing_library(name, found.root)
    for folder in sorted(set(_runpaths(found))):  # wheels name several alternatives; only this is misspelt
        if folder.endswith("/nvidia/nvrtc/lib") and not os.path.isdir(folder):
            yield finding("dead-runpath", f"the libraries search {folder}, which does not exist", path=folder)


def missing_library(name: str, root: str = "/") -> Finding:
    """Return the finding for a library that cuDNN is linked with and that the linker does not find."""
    package, commands = _system_package(name, root)
    fix = {"package": package or f"the package that contains {name}"}
    text = f"{name} was not found"
    return finding("missing-system-library", text, library=name, fix=fix, commands=commands)


def check_libc(found: LibrarySet) -> Iterator[Finding]:
    """Check that the C library of this machine or of the image is new enough for these libraries."""
    if found.windows:
        return
    have, musl, system = _elf.glibc_version(), sys.platform == "linux", "this system"
    if found.root != "/":
        system = f"the image at {found.root}"
        names = _files.names_in(_files.real(os.path.join(found.root, "lib"), found.root))
        have, musl = _glibc_of(found), any(name.startswith("ld-musl-") for name in names)
    if not have and musl:
        yield finding("no-glibc", f"{system} has no glibc", path=found.folder)
        return
    needs = {name for library in found.sound for name in library.elf.symbols.versions}
    wanted = max((_numbers(name) for name in needs if name.startswith("GLIBC_2")), default=())
    if have and wanted > _numbers(have):
        have = dotted(_numbers(have))
        text = f"cuDNN {write(found.version)} needs glibc {dotted(wanted)}, but {system} has {have}"
        yield finding("old-glibc", text, path=found.folder, needs=dotted(wanted), have=have)


def check_memory(found: LibrarySet, failed: bool = False) -> Iterator[Finding]:
    """Check that the limit of the address space of this process allows to map the libraries."""
    # If that failed, any limit is too low, because other libraries need memory too.
    if found.root != "/" or found.windows:
        return
    with suppress(ImportError):
        import resource  # not on Windows

        limit, needs = resource.getrlimit(resource.RLIMIT_AS)[0], sum(each.elf.size for each in found.sound)
        if limit > 0 and (failed or limit < needs):
            text = f"the address space of a process is limited to {limit >> 20:,} MiB, and the libraries of "
            text += f"{found.folder} have {needs >> 20:,} MiB"
            yield finding("memory-limit", text, limit=limit, needs=needs)


def _user(found: LibrarySet, stem: str, wheel: str) -> tuple[str, Severity | None]:
    """Return what needs a library of CUDA, empty if nothing does, and the severity if it is missing."""
    if stem not in COMPANIONS:
        return next((need.consumer for need in found.others if need.package == wheel), ""), None
    if needs(stem, found.kind, found.version):
        return f"the cuDNN of {found.folder}", None
    part = next((part for part in COMPANIONS[stem].also if part in found.libraries), "")
    return (found.libraries[part].path if part else ""), Severity.NOTE


def _missing(
    found: LibrarySet, code: str, text: str, name: str, wheel: str, severity: Severity | None = None
) -> Finding:
    """Return the finding for a library of CUDA; the fix installs the version that the consumers require."""
    site = records.site_of(found.folder)
    installed = records.installed(site, wheel)
    pin = f"{wheel}=={installed}" if installed else companion(found, wheel)
    kit = pin.startswith(TOOLKIT)
    commands: tuple[str, ...] = ()
    if site and pin and not divided(found):  # else a package must move to another environment first
        manager = pip.of(site, found.root)
        # Unpacking cuda-toolkit does not install what its extras require.
        commands = () if kit and manager.loose else manager.install(pin, keep=bool(installed))
    fix = {"package": f"{wheel} in the version of {pin}" if kit else wheel}
    shown: dict[str, Any] = {"severity": severity, "commands": commands, "library": name}
    return finding(code, text, package=wheel, fix=fix, **shown)


def find(found: LibrarySet, name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Find a library in the folders of cuDNN, of the linker or of wheels; empty if none can be opened."""
    opened = _opened(found, name, environ)
    return opened.path if opened and not opened.error else ""


def _opened(found: LibrarySet, name: str, environ: Mapping[str, str]) -> Library | None:
    """Read the file that the linker opens for a name; the first that it skips if it opens none."""
    skipped = None
    for folder in _companion_folders(found, name, environ):
        # The links of an image are followed inside it.
        path = os.path.join(folder if found.root == "/" else _files.real(folder, found.root), name)
        if os.path.lexists(path):
            library = _read(found, path)
            if not library.error or library.error.kind not in SKIPPED:
                return library
            skipped = skipped or library
    return skipped


def _read(found: LibrarySet, path: str) -> Library:
    """Read a library that is not a part of cuDNN; another processor than that of cuDNN is an error."""
    library = read_library(path, found.root)
    machines = {part.elf.machine for part in found.sound}  # none if all parts are gone
    if library.error or not machines or library.elf.machine in machines:
        return library
    name = _elf.MACHINES.get(library.elf.machine, f"machine {library.elf.machine}")
    return replace(library, error=_elf.ElfError("machine", path, f"is a library for {name}"))


def _is_added(found: LibrarySet, folder: str, environ: Mapping[str, str]) -> bool:
    """Return whether only LD_LIBRARY_PATH leads to a folder: it is outside of the site-packages of cuDNN."""
    inside = f"{folder}/".startswith(f"{records.site_of(found.folder) or found.folder}/")
    return found.root == "/" and folder in map(os.path.normpath, _files.search_path(environ)) and not inside


def _broken(found: LibrarySet, library: Library, function: str = "") -> Iterator[Finding]:
    """Report a library besides cuDNN that cannot be opened, is another one, or lacks ``function``."""
    soname, of_cuda = library.elf.soname, library.file.startswith(tuple(f"{stem}.so." for stem in OPENED))
    stub = _lacks(library, function)
    if not library.error and not stub and (not soname or soname == library.file or not of_cuda):
        return
    again = Fix(f"replace {library.path}; if LD_LIBRARY_PATH names its folder, remove the folder from it")
    owner = records.owner_of(library.path)
    if not owner and (right := _right(library, found.root)):
        text = f"{library.path} is a link to {os.readlink(library.path)}, and not to {right}"
        fix = {"path": pip.inside(library.path, found.root), "file": right}
        yield finding("wrong-link", text, severity=_severity(library), path=library.path, fix=fix)
        return
    if owner:
        site = records.site_of(os.path.dirname(library.path))
        metadata = os.path.join(site, f"{owner.replace('-', '_').replace('==', '-')}.dist-info")
        lost = [pip.inside(path, found.root) for path in records.lost_links(metadata, found.root)]
        again = Fix(f"install {owner} again", pip.of(site, found.root).again(owner, lost))
    elif pip.inside(library.path, found.root).startswith(SYSTEM_FOLDERS):
        package, commands = _system_package(library.file, found.root, " --reinstall")
        again = Fix(f"install {package} again", commands) if commands else again
    if library.error:
        code = FILE_CODES.get(library.error.kind, "damaged-library")
        text = f"cuDNN cannot open {library.file}: {str(library.error).partition('; ')[0]}"
    else:
        link = f", a link to {library.real}," if library.real != library.path else ""
        problem = f"lacks the function {function}" if stub else f"is {soname}"
        code, text = "wrong-library", f"{library.path}{link} {problem}"
    fix = {"path": pip.inside(library.path, found.root)}
    yield finding(code, text, severity=_severity(library), repair=again, path=library.path, fix=fix)


def _lacks(library: Library, function: str) -> bool:
    """Return whether a library exports other functions alone; one without a readable table may have it."""
    with suppress(_elf.ElfError):
        exports = library.elf.symbols.exports if function and not library.error else ()
        return bool(exports) and function not in exports
    return False


def _severity(library: Library) -> Severity | None:
    return Severity.WARNING if library.file.startswith(("libnvrtc", "libcudart")) else None


def _right(library: Library, root: str) -> str:
    """Return the file next to a link that has the name of the link inside; empty for other libraries."""
    if not os.path.islink(library.path):
        return ""
    folder, start = os.path.dirname(library.path), f"{library.file}."
    names = (name for name in _files.names_in(folder) if name.startswith(start))
    read = ((name, read_library(os.path.join(folder, name), root)) for name in names)
    return next((name for name, each in read if each.elf.soname == library.file), "")


def _system_package(name: str, root: str, again: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the package that contains a library of the system and the commands that install it."""
    if name not in SYSTEM or not os.path.lexists(os.path.join(root, "usr/bin/apt-get")):
        return "", ()
    package = SYSTEM[name][0]
    return package, ("apt-get update", f"apt-get install -y{again} {package}")


def _check_versions(found: LibrarySet, library: Library) -> Iterator[Finding]:
    """Check that a system library has the symbol versions with which the parts of cuDNN are linked."""
    if library.error or library.file not in SYSTEM:
        return
    with suppress(_elf.ElfError):
        provided = library.elf.provided
        for part in found.sound if provided else ():  # the linker accepts a library without versions
            wanted = {name for name in part.elf.symbols.versions if name.startswith(SYSTEM[library.file][1])}
            if lacking := sorted(wanted - provided):
                text = f"{library.path}: version `{lacking[-1]}' not found (required by {part.path})"
                yield finding("old-system-library", text, path=library.path, versions=lacking)
                return


def _check_builtins(
    found: LibrarySet, nvrtc: Library, wheel: str, severity: Severity | None
) -> Iterator[Finding]:
    """Check the library that libnvrtc opens to compile, whose name has the version of CUDA."""
    paths = {  # the files may be links to folders of their own
        name: os.path.join(folder, name)
        for folder in map(os.path.dirname, (nvrtc.real, nvrtc.path))
        for name in _files.names_in(folder)
        if re.match(r"libnvrtc-builtins.*\.so", name)
    }
    names = list(paths)
    for path in paths.values():
        yield from _broken(found, _read(found, path))
    # The version of libnvrtc is in its real name or in that of its wheel.
    owner = (records.owner_of(nvrtc.path) or records.owner_of(nvrtc.real)).partition("==")[2]
    version = re.match(r"\d+\.\d+", owner or nvrtc.real.rpartition(".so.")[2])
    wanted = f"libnvrtc-builtins.so.{version[0]}" if version and found.cuda > 11 else ""
    if nvrtc.error or (names and (not wanted or wanted in names)):
        return
    have = f", which has {names[0]}" if names else ""
    text = f"{nvrtc.path} needs {wanted or 'libnvrtc-builtins'}, which is not in its folder{have}"
    yield _missing(found, "missing-nvrtc", text, "libnvrtc-builtins", wheel, severity)


def _companion_folders(found: LibrarySet, name: str, environ: Mapping[str, str]) -> Iterator[str]:
    here = found.root == "/"  # the environment of this process is not that of an image
    ours = here and records.site_of(found.folder) in ("", *sys.path)  # nor that of another Python
    wheels = ("cublas/lib", "cuda_nvrtc/lib", "cuda_runtime/lib", f"cu{found.cuda}/lib")
    spec = LibrarySpec(name, tuple(f"nvidia/{wheel}" for wheel in wheels))
    context = SearchContext(
        None, environ if here else {}, tuple(sys.path) if ours else (), beside=found.folder, root=found.root
    )
    if not any(library.elf.runpath for library in found.sound):
        yield from _runpaths(found)  # of an RPATH, which the linker searches first
    if here:
        yield from filter(os.path.isabs, _files.search_path(environ))
    yield found.folder
    yield from _runpaths(found)
    sites = filter(None, (records.site_of(found.folder), *found.sites))
    yield from (os.path.join(site, wheel) for site in sites for wheel in spec.wheels)
    steps = ("system", *STEPS) if name in SYSTEM else STEPS
    if not here:  # with `searched`, the cache of the linker in the image, which may be missing
        yield from search.configured_folders(found.root)
    yield from (folder for _, folder in searched(steps, spec, context))
    if prefix := records.prefix_of(found.folder, found.root):  # which the Python of conda searches first
        yield os.path.join(prefix, "lib")
    if ours:
        yield from folders_of(sys.base_prefix)


def _runpaths(found: LibrarySet) -> Iterator[str]:
    for library in found.sound:
        yield from search.run_paths(found, library)


def _glibc_of(found: LibrarySet) -> str:
    """Return the newest symbol version of the glibc in an image, such as ``2.35``; empty if it has none."""
    path = find(found, "libc.so.6")
    with suppress(_elf.ElfError):
        versions = _elf.read(_files.real(path, found.root)).provided if path else ()
        newest = max((_numbers(name) for name in versions if name.startswith("GLIBC_2")), default=())
        return dotted(newest)
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
