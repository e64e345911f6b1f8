"""Follow the search of the linker: find other cuDNNs that take precedence, and missing dependencies."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from .. import _elf, _files
from .._find import SYSTEM_FOLDERS, TOOLKITS, LibrarySpec, SearchContext, folders_of, searched
from .._installation import header_folders, header_version
from .._libraries import Library, read_library
from . import libraryset, locate, records
from .checks import FILE_CODES
from .finding import Finding, Severity, finding
from .libraryset import LibrarySet, write
from .sandbox import SETTINGS

__all__ = ["check_companions", "check_competition", "check_headers", "find_companion", "missing_library"]

# Libraries that cuDNN is linked with, their Debian packages, and the names of their symbol versions.
SYSTEM = {
    "libz.so.1": ("zlib1g", ("ZLIB_",)),
    "libstdc++.so.6": ("libstdc++6", ("GLIBCXX_", "CXXABI_")),
    "libgcc_s.so.1": ("libgcc-s1", ("GCC_",)),
}

# Libraries of glibc and of the driver, and cuDNN's own, which other checks examine.
OTHERS = re.compile(r"ld-linux.*|lib(c|m|dl|rt|pthread|cuda|cudnn\w*)\.so(\..*)?")

# Libraries of CUDA that cuDNN or its consumers open by name: their finding if missing, and their wheels.
CUDA = {
    "libcublasLt": ("missing-cublaslt", "nvidia-cublas"),
    "libnvrtc": ("missing-nvrtc", "nvidia-cuda-nvrtc"),
    "libcudart": ("", "nvidia-cuda-runtime"),
}

# Libraries of CUDA 11 with another name than by the major version.
CUDA_11 = {"libnvrtc": "libnvrtc.so.11.2", "libcudart": "libcudart.so.11.0"}

# Errors after which the linker searches the next folder. After all others it fails.
SKIPPED = ("missing", "unreadable", "class", "machine")

# The loader's steps for libraries of CUDA that search folders.
STEPS = ("beside cuDNN", "wheel", "conda", "CUDA toolkit", "system")

# GCC and Clang search these before the default folders.
INCLUDES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


def check_competition(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries of cuDNN that a process would load instead of these, and other installations."""
    if found.root != "/":
        return  # the environment of this process is not that of the image
    for name in filter(SETTINGS.fullmatch, sorted(environ)):
        text = f"{name}={environ[name]} is set; cuDNN was examined without it"
        yield finding("cudnn-setting", text, variable=name)
    for path in re.split(r"[ :]+", environ.get("LD_PRELOAD", "")):
        if _files.library_name(path) and os.path.dirname(_files.real(path)) != found.folder:
            yield finding("preloaded", f"LD_PRELOAD names {path}", path=path, expected=found.folder)
    seen = {found.folder}
    for entry in environ.get("LD_LIBRARY_PATH", "").split(":"):
        folder = _files.real(entry) if entry else ""
        if folder == found.folder:
            break  # its own libraries come first
        # Only names of version 9: .so.8 is never opened, and .so only after these.
        if folder and folder not in seen and any(name.major == 9 for name in _files.cudnn_files(folder)):
            seen.add(folder)
            yield _shadow(found, entry)
    for place in locate.usual(environ).found:
        if place.folder in seen:
            continue
        other = libraryset.read(place.folder)
        version = write(other.version) if other else "older than 9"
        text = f"another cuDNN ({version}) is in {place.folder} ({place.via})"
        yield finding("other-cudnn", text, path=place.folder, version=version, via=place.via)


def _shadow(found: LibrarySet, entry: str) -> Finding:
    """Describe a folder of LD_LIBRARY_PATH that contains a cuDNN."""
    # libcudnn up to 9.20 has its own folder as RUNPATH, which is searched after LD_LIBRARY_PATH: all
    # libraries are loaded from the path. Newer ones have it as RPATH, which is searched first, but the
    # libraries that they open have a RUNPATH: the engines are loaded from the path. A library that this
    # version lacks, such as engines_tensor_ir for 9.20, is loaded from the path too.
    other = libraryset.read(entry)
    same = other is not None and other.version == found.version and other.cuda == found.cuda
    version = write(other.version) if other else "older than 9"
    shim = found.libraries.get("")
    kind = "RPATH" if shim and shim.elf.rpath else "RUNPATH"
    what = "its engines" if kind == "RPATH" else "all of its libraries"
    return finding(
        "shadowed",
        f"LD_LIBRARY_PATH has {entry} with a cuDNN {version}: the cuDNN {write(found.version)} "
        f"of {found.folder} loads {what} from it",
        severity=Severity.WARNING if same else None,
        path=entry,
        folder=entry,
        version=version,
        expected=write(found.version),
        search=kind,
    )


def check_companions(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries that cuDNN needs and that are not found or cannot be opened."""
    for stem, (code, package) in CUDA.items() if found.cuda else ():
        name = (found.cuda == 11 and CUDA_11.get(stem)) or f"{stem}.so.{found.cuda}"
        wheel = package if found.cuda >= 13 else f"{package}-cu{found.cuda}"
        opened = _opened(found, name, environ)
        if opened:
            yield from _broken(found, opened)
        elif code:
            # The environment of an image, which is unknown, may name the folder.
            unsure = code == "missing-cublaslt" and found.root != "/"
            text = f"the cuDNN of {found.folder} needs {name}, which was not found"
            severity = Severity.WARNING if unsure else None
            yield finding(code, text, severity=severity, library=name, package=wheel)
        if opened and stem == "libnvrtc":
            yield from _check_builtins(found, opened, wheel)
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
    package = _debian_package(name, root)
    advice = f"apt-get install {package}" if package else f"the package that contains {name}"
    return finding("missing-system-library", f"{name} was not found", library=name, fix={"advice": advice})


def find_companion(found: LibrarySet, name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Find a library in the folders of cuDNN, of the linker or of wheels; empty if none can be opened."""
    opened = _opened(found, name, environ)
    return opened.path if opened and not opened.error else ""


def check_headers(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Compare the libraries with the headers that a compiler may find."""
    own, others = header_folders(found.folder)[:1], []  # another cuDNN may own Debian's second folder
    if found.root == "/":
        told = [folder for name in INCLUDES for folder in environ.get(name, "").split(":") if folder]
        roots = [environ[name] for name in ("CUDNN_PATH", *TOOLKITS) if environ.get(name)]
        others = [*told, *(os.path.join(root, "include") for root in roots)]
        others += ["/usr/include", "/usr/local/cuda/include"]
    for folder in dict.fromkeys([*own, *others]):
        path = os.path.join(folder, "cudnn_version.h")
        try:
            version = header_version(path)
        except OSError:
            continue
        if not version or not found.version or version == found.version:
            continue
        code = "header-mismatch" if folder in own else "other-header"
        have, expected = write(version), write(found.version)
        text = f"{path} has version {have}, but the libraries of {found.folder} are {expected}"
        yield found.finding(code, text, path=path, version=have, expected=expected)


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
    if library.error or library.elf.machine in {part.elf.machine for part in found.sound}:
        return library
    name = _elf.MACHINES.get(library.elf.machine, f"machine {library.elf.machine}")
    return replace(library, error=_elf.ElfError("machine", path, f"is a library for {name}"))


def _broken(found: LibrarySet, library: Library) -> Iterator[Finding]:
    """Report a library that is not a part of cuDNN and cannot be opened."""
    if not library.error:
        return
    again = f"replace {library.path}; if LD_LIBRARY_PATH names its folder, remove the folder from it"
    if owner := records.owner_of(library.path):
        again = f"python -m pip install --force-reinstall --no-deps {owner}"
    elif f"/{os.path.relpath(library.path, found.root)}".startswith(SYSTEM_FOLDERS) and (
        package := _debian_package(library.file, found.root)
    ):
        again = f"apt-get install --reinstall {package}"
    code = FILE_CODES.get(library.error.kind, "damaged-library")
    text = f"cuDNN cannot open {library.file}: {str(library.error).partition('; ')[0]}"
    severity = Severity.WARNING if library.file.startswith(("libnvrtc", "libcudart")) else None
    yield finding(code, text, severity=severity, path=library.path, fix={"reinstall": again})


def _debian_package(name: str, root: str) -> str:
    """Return the package that contains a library, on systems with apt-get; empty for all others."""
    apt = os.path.lexists(os.path.join(root, "usr/bin/apt-get"))
    return SYSTEM[name][0] if apt and name in SYSTEM else ""


def _check_versions(found: LibrarySet, library: Library) -> Iterator[Finding]:
    """Check that a system library has the symbol versions with which the parts of cuDNN are linked."""
    if library.error or library.file not in SYSTEM:
        return
    with suppress(_elf.ElfError):
        provided = library.elf.symbols.provided
        for part in found.sound if provided else ():  # the linker accepts a library without versions
            wanted = {name for name in part.elf.symbols.versions if name.startswith(SYSTEM[library.file][1])}
            if lacking := sorted(wanted - provided):
                text = f"{library.path}: version `{lacking[-1]}' not found (required by {part.path})"
                yield finding("old-system-library", text, path=library.path, versions=lacking)
                return


def _check_builtins(found: LibrarySet, nvrtc: Library, wheel: str) -> Iterator[Finding]:
    """Check the library that libnvrtc opens to compile, whose name has the version of CUDA."""
    folder = os.path.dirname(nvrtc.real)
    names = [name for name in _files.names_in(folder) if re.match(r"libnvrtc-builtins.*\.so", name)]
    for name in names:
        yield from _broken(found, _read(found, os.path.join(folder, name)))
    if not names and not nvrtc.error:
        text = f"{nvrtc.path} needs libnvrtc-builtins, which is not in its folder"
        yield finding("missing-nvrtc", text, library="libnvrtc-builtins", package=wheel)


def _companion_folders(found: LibrarySet, name: str, environ: Mapping[str, str]) -> Iterator[str]:
    here = found.root == "/"  # the environment of this process is not that of an image
    wheels = ("cublas/lib", "cuda_nvrtc/lib", "cuda_runtime/lib", f"cu{found.cuda}/lib")
    spec = LibrarySpec(name, tuple(f"nvidia/{wheel}" for wheel in wheels))
    context = SearchContext(
        None, environ if here else {}, tuple(sys.path) if here else (), beside=found.folder, root=found.root
    )
    if not any(library.elf.runpath for library in found.sound):
        yield from _runpaths(found)  # of an RPATH, which the linker searches first
    if here:
        yield from filter(os.path.isabs, environ.get("LD_LIBRARY_PATH", "").split(":"))
    yield found.folder
    yield from _runpaths(found)
    steps = ("system", *STEPS) if name in SYSTEM else STEPS
    yield from (folder for _, folder in searched(steps, spec, context))
    if here:
        yield from folders_of(sys.base_prefix)


def _runpaths(found: LibrarySet) -> Iterator[str]:
    for library in found.sound:
        for folder in library.elf.runpath + library.elf.rpath:
            yield os.path.normpath(folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", found.folder))
