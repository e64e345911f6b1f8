"""Find other cuDNNs and headers that take precedence over those of a cuDNN."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from .. import _files
from .._find import TOOLKITS
from .._installation import header_folders, header_version
from .._variables import unknown_variables
from . import libraryset, locate, windows
from .finding import Finding, Severity, finding
from .libraryset import LibrarySet, write
from .sandbox import SETTINGS

__all__ = ["check_competition", "check_headers", "check_settings"]

# GCC and Clang search these before the default folders.
INCLUDES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


def check_competition(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries of cuDNN that a process would load instead of these, and other installations."""
    if found.windows:
        yield from windows.check_competition(found)
    if found.root != "/" or found.windows:
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
        names = list(_files.cudnn_files(folder)) if folder and folder not in seen else []
        # libcudnn.so.9 is opened by its path, and only its parts by their names.
        if any(name.major == 9 and name.part for name in names):
            seen.add(folder)
            if any(os.path.dirname(_files.real(name.path)) != found.folder for name in names):
                yield _shadow(found, entry)  # not of links to its own libraries
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


def check_settings(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report variables that are meant for cudnn_ct, which it does not read."""
    for name, meant in unknown_variables(environ).items():
        text = f"{name}={environ[name]} is ignored: cudnn_ct has no such setting"
        yield finding("unknown-setting", text, variable=name, meant=meant)


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
