"""Find other cuDNNs, headers and preloaded libraries that take precedence over those of a cuDNN."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from . import libraryset, linker, locate, pip
from .finding import Finding, Fix, Severity, finding
from .libraryset import LibrarySet, write
from .read import elf as _elf
from .read import files as _files
from .read.find import TOOLKITS, LibrarySpec, SearchContext, searched
from .read.installation import header_folders, header_version
from .read.variables import unknown_variables

# --- preloads ----------------------------------------------------------------------------------------------

FILE = "/etc/ld.so.preload"


def check_preloads(found: LibrarySet, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report each preloaded library that is one of cuDNN, or that defines functions of it."""
    words = list(filter(None, re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))))
    for word in words:
        rest = f"remove {word} from LD_PRELOAD" if words[1:] else "unset LD_PRELOAD"
        yield from _judge(found, word, "LD_PRELOAD", rest, environ)
    file = _files.real(os.path.join(found.root, FILE[1:]), found.root)
    for line in _files.text_or_empty(file).splitlines():
        for word in filter(None, re.split(r"[ \t:,]+", line.partition("#")[0])):
            yield from _judge(found, word, FILE, f"remove {word} from {FILE}", environ)


def _judge(
    found: LibrarySet, word: str, source: str, advice: str, environ: Mapping[str, str]
) -> Iterator[Finding]:
    path = _path_of(found, word, environ)
    if not path or os.path.dirname(path) == found.folder:
        return
    text = f"{source} names {word}"
    try:
        elf = _elf.read(path)
        exports = sorted(name for name in elf.symbols.exports if re.match("cudnn[A-Z]", name))
    except _elf.ElfError:
        return  # the linker ignores it
    if not (_files.library_name(word) or _files.library_name(elf.soname or "")):
        if not exports:
            return
        text += f", which defines functions of cuDNN, such as {exports[0]}"
    yield finding("preloaded", text, path=path, expected=found.folder, fix={"advice": advice})


def _path_of(found: LibrarySet, word: str, environ: Mapping[str, str]) -> str:
    """Return the file that the linker preloads for a path or a name; empty if it finds none."""
    if "/" in word:
        paths = [os.path.join(found.root, word.lstrip("/")) if word.startswith("/") else word]
    else:
        context = SearchContext(None, environ, root=found.root)
        folders = searched(("system",), LibrarySpec(word), context)
        paths = [os.path.join(folder, word) for _, folder in folders]
    real = (_files.real(path, found.root) for path in paths)
    return next(filter(os.path.isfile, real), "")


# --- search ------------------------------------------------------------------------------------------------

# GCC and Clang search these before the default folders.
INCLUDES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")

# Environment variables that change cuDNN, from its strings; those that it only logs by are not among them.
SETTINGS = re.compile(
    r"CUDNN_((?!LOG)\w+_DBG|LIB_CONFIG|FORT_\w+|TENSOR_IR_\w+|FORWARD_COMPAT_DISABLE|FORCE_KERNEL_INIT"
    r"|ENABLE_DEFAULT_KERNEL_CACHE|CUDA_GRAPH_RETENTION|CUBLASLT_HEURISTIC_COUNT)|NVIDIA_TF32_OVERRIDE"
)


def check_competition(
    found: LibrarySet, environ: Mapping[str, str] = os.environ, usual: locate.Places | None = None
) -> Iterator[Finding]:
    """Report libraries that a process would load instead of these, and the ``usual`` other installations."""
    if found.windows:
        yield from linker.check_competition(found)
        return
    for folder in _hwcaps(found.folder):
        if _replace(found, _parts_in(folder)):
            yield _special(found, folder)
    if found.root != "/":  # the environment of this process is not that of the image
        yield from check_preloads(found, {})
        return
    for name in filter(SETTINGS.fullmatch, sorted(environ)):
        text = f"{name}={environ[name]} is set; cuDNN was examined without it"
        yield finding("cudnn-setting", text, variable=name)
    yield from check_preloads(found, environ)
    seen = {found.folder}
    for entry in _files.search_path(environ):
        folder = _files.real(entry)
        if folder == found.folder:
            break  # its own libraries come first
        for each in (*_hwcaps(folder), folder):
            if each not in seen and (names := _parts_in(each)):
                seen.add(each)
                if _replace(found, names):
                    yield _shadow(found, each, entry)
    for place in (usual or locate.usual(environ)).found:
        if place.folder in seen:
            continue
        other = libraryset.read(place.folder)
        version = write(other.version) if other else "older than 9"
        text = f"another cuDNN ({version}) is in {place.folder} ({place.via})"
        yield finding("other-cudnn", text, path=place.folder, version=version, via=place.via)


def _hwcaps(folder: str) -> list[str]:
    """List the folders for newer processors that glibc searches before a folder."""
    top = os.path.join(folder, "glibc-hwcaps")
    return [os.path.join(top, name) for name in reversed(_files.names_in(top))]


def _parts_in(folder: str) -> list[_files.LibraryName]:
    """List the libraries of a folder that a cuDNN elsewhere opens by their names."""
    # libcudnn.so.9 is opened by its path. Names of version 8 are never opened, and .so only after these.
    return [name for name in _files.cudnn_files(folder) if name.major == 9 and name.part]


def _replace(found: LibrarySet, names: list[_files.LibraryName]) -> bool:
    """Return whether files replace the libraries of a cuDNN, and are not only links to them."""
    return any(os.path.dirname(_files.real(name.path, found.root)) != found.folder for name in names)


def _shadow(found: LibrarySet, folder: str, entry: str) -> Finding:
    """Describe a folder of LD_LIBRARY_PATH that contains a cuDNN."""
    # libcudnn up to 9.20 has its own folder as RUNPATH, which is searched after LD_LIBRARY_PATH: all
    # libraries are loaded from the path. Newer ones have it as RPATH, which is searched first, but the
    # libraries that they open have a RUNPATH: the engines are loaded from the path. A library that this
    # version lacks, such as engines_tensor_ir for 9.20, is loaded from the path too.
    shim = found.libraries.get("")
    kind = "RPATH" if shim and shim.elf.rpath else "RUNPATH"
    what = "its engines" if kind == "RPATH" else "all of its libraries"
    shown = (
        entry
        if os.path.isabs(entry)
        else f"{'an empty entry' if entry == '.' else entry} (the folder {folder})"
    )
    removed = shown if entry != "." else "the empty entry"
    text = f"LD_LIBRARY_PATH has {shown} with a cuDNN {{version}}: the cuDNN {write(found.version)} "
    text += f"of {found.folder} loads {what} from it"
    advice = f"unset LD_LIBRARY_PATH, or remove {removed} from it"
    return _shadowed(found, folder, text, advice, search=kind)


def _special(found: LibrarySet, folder: str) -> Finding:
    """Describe libraries in a folder for newer processors inside the folder of a cuDNN."""
    text = f"{folder} has a cuDNN {{version}}, which the linker loads on newer processors instead of the "
    text += f"cuDNN {write(found.version)} of {found.folder}"
    files = [pip.inside(name.path, found.root) for name in _files.cudnn_files(folder)]
    commands = [f"rm -f {' '.join(map(shlex.quote, files))}"]
    return _shadowed(found, folder, text, f"delete {', '.join(files)}", commands=commands)


def _shadowed(found: LibrarySet, folder: str, text: str, advice: str, **more: Any) -> Finding:
    other = libraryset.read(folder, found.root)
    same = other is not None and other.version == found.version and other.cuda == found.cuda
    version = write(other.version) if other else "older than 9"
    shown = {"path": folder, "version": version, "expected": write(found.version), **more}
    severity = Severity.WARNING if same else None
    return finding(
        "shadowed", text.format(version=version), severity=severity, fix={"advice": advice}, **shown
    )


def check_settings(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report variables that are meant for cudnn_ct, which it does not read."""
    for name, meant in unknown_variables(environ).items():
        text = f"{name}={environ[name]} is ignored: cudnn_ct has no such setting"
        fix = {"meant": meant or "the name of a setting"}
        yield finding("unknown-setting", text, fix=fix, variable=name, meant=meant)


def check_headers(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Compare the libraries with the headers that a compiler may find."""
    own, others = header_folders(found.folder)[:1], []  # another cuDNN may own Debian's second folder
    if found.root == "/":
        told = [folder for name in INCLUDES for folder in environ.get(name, "").split(":") if folder]
        roots = [environ[name] for name in ("CUDNN_PATH", *TOOLKITS) if environ.get(name)]
        others = [*told, *(os.path.join(root, "include") for root in roots)]
    others += [os.path.join(found.root, name) for name in ("usr/include", "usr/local/cuda/include")]
    for folder in dict.fromkeys([*own, *others]):
        path = os.path.join(folder, "cudnn_version.h")
        try:
            version = header_version(_files.real(path, found.root))
        except OSError:
            continue
        if not version or not found.version or version == found.version:
            continue
        chosen = os.path.dirname(own[0]) == folder and os.path.islink(path)  # by Debian's alternatives
        have, expected = write(version), write(found.version)
        text = f"{path} has version {have}, but the libraries of {found.folder} are {expected}"
        shown: dict[str, Any] = {"repair": _alternative(found, own[0])} if chosen else {}
        code = "header-mismatch" if chosen or folder in own else "other-header"
        yield found.finding(code, text, path=path, version=have, expected=expected, **shown)


def _alternative(found: LibrarySet, folder: str) -> Fix:
    """Return the fix that selects the header of this cuDNN among Debian's alternatives."""
    header = os.path.join(folder, f"cudnn_v{found.version[0] if found.version else 9}.h")
    command = f"update-alternatives --set libcudnn {pip.inside(header, found.root)}"
    text = "select the header of this cuDNN: update-alternatives --config libcudnn"
    return Fix(text, (command,) if os.path.exists(header) else ())
