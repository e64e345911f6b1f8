"""Find out what a program gets instead of the libraries of a cuDNN: by settings, copies and linkers."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from . import libraryset, locate, pip, records
from .finding import Finding, Fix, Severity, finding
from .libraryset import Library, LibrarySet, write
from .read import elf as _elf
from .read import files as _files
from .read.find import CUDNN, TOOLKITS, LibrarySpec, SearchContext, searched
from .read.installation import header_folders, header_version
from .read.libraries import COMPANIONS
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
        yield from check_windows_folders(found)
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
    same = _competitor(found, folder, libraryset.read(folder, found.root))
    shim = found.libraries.get("")
    kind = "RPATH" if shim and shim.elf.rpath else "RUNPATH"
    what = "its engines" if kind == "RPATH" else "all of its libraries"
    shown = "an empty entry" if entry == "." else entry
    shown = shown if os.path.isabs(entry) else f"{shown} (the folder {folder})"
    removed = shown if entry != "." else "the empty entry"
    text = f"LD_LIBRARY_PATH has {shown} with a cuDNN {same['version']}: the cuDNN {write(found.version)} "
    text += f"of {found.folder} loads {what} from it"
    advice = f"unset LD_LIBRARY_PATH, or remove {removed} from it"
    return finding("shadowed", text, fix={"advice": advice}, **same, search=kind)


def _special(found: LibrarySet, folder: str) -> Finding:
    """Describe libraries in a folder for newer processors inside the folder of a cuDNN."""
    same = _competitor(found, folder, libraryset.read(folder, found.root))
    text = f"{folder} has a cuDNN {same['version']}, which the linker loads on newer processors instead of "
    text += f"the cuDNN {write(found.version)} of {found.folder}"
    files = [pip.inside(name.path, found.root) for name in _files.cudnn_files(folder)]
    commands = [f"rm -f {' '.join(map(shlex.quote, files))}"]
    fix = {"advice": f"delete {', '.join(files)}"}
    return finding("shadowed", text, fix=fix, commands=commands, **same)


def _competitor(found: LibrarySet, folder: str, other: LibrarySet | None) -> dict[str, Any]:
    """Return the severity and the evidence of a finding about another cuDNN that is found first."""
    same = other is not None and other.version == found.version and other.cuda == found.cuda
    version = write(other.version) if other else "older than 9"
    severity = Severity.WARNING if same else None
    return {"severity": severity, "path": folder, "version": version, "expected": write(found.version)}


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


# The files may be on any system: those of Windows are checked on Linux too.

# --- Windows -----------------------------------------------------------------------------------------------

# Windows searches these before the folders of Python packages and of PATH.
SYSTEM = ("Windows/System32", "Windows")


def check_windows_folders(found: LibrarySet) -> Iterator[Finding]:
    """Report copies in the folders that Windows searches first."""
    for folder in _first_folders(found):
        other = libraryset.read(folder, found.root)
        if other and other.folder != found.folder:
            version = write(other.version)
            text = f"{folder} has a cuDNN {version}, which Windows searches before that of {found.folder}"
            yield finding("shadowed-on-windows", text, **_competitor(found, folder, other))


def check_companions(found: LibrarySet) -> Iterator[Finding]:
    """Report libraries of CUDA that are not found or cannot be opened."""
    machines = {library.elf.machine for library in found.sound}
    for row in COMPANIONS.values() if found.cuda and machines else ():
        name = row.dll.format(found.cuda)
        wheel = row.package if found.cuda >= 13 else f"{row.package}-cu{found.cuda}"
        path = next(filter(None, (_file(each, name) for each in _folders(found, row.folder))), "")
        if not path:
            text = f"the cuDNN of {found.folder} needs {name}, which was not found"
            site = records.site_of(found.folder)
            commands = pip.of(site, found.root, windows=True).install(wheel) if site else ()
            shown: dict[str, Any] = {"severity": Severity.WARNING, "commands": commands}
            yield finding(row.missing, text, library=name, package=wheel, **shown)
            continue
        library = libraryset.read_library(path, found.root)
        if library.error or library.elf.machine not in machines:
            reason = str(library.error).partition("; ")[0] if library.error else "is for another processor"
            owner = records.owner_of(path)
            site = records.site_of(os.path.dirname(path))
            commands = pip.of(site, found.root, windows=True).install(owner, keep=True) if owner else ()
            again = Fix(f"install {owner or wheel} again", commands)
            kind = "damaged-library" if library.error and library.error.kind != "class" else "foreign-machine"
            yield finding(kind, f"cuDNN cannot open {name}: {reason}", repair=again, path=path)


def is_misplaced(folder: str, root: str = "/") -> bool:
    """Return whether libraries for Windows are in the site-packages of a Python for another system."""
    site, paths = records.site_of(folder), [name.path.lower() for name in _files.cudnn_files(folder)]
    if not site or not paths or not all(path.endswith(".dll") for path in paths):
        return False
    manager = pip.of(site, root)
    return not manager.loose and not manager.windows


def misplaced(folder: str, root: str = "/") -> Iterator[Finding]:
    """Report libraries for which `is_misplaced` is true, unless those for the other system exist too."""
    site = records.site_of(folder)
    if any(_files.cudnn_files(os.path.join(site, records.FULL_FOLDER))):
        return
    pins = records.of_windows(site)
    commands = [command for pin in pins for command in pip.of(site, root).install(pin, keep=True)]
    again = Fix(f"install {' and '.join(pins)} again", tuple(commands))
    text = f"{folder} has the libraries for Windows, and the Python of {site} is for another system"
    yield finding("foreign-machine", text, repair=again, path=folder)


def _first_folders(found: LibrarySet) -> list[str]:
    """List the folder of the program, python.exe, and those of the system."""
    site = records.site_of(found.folder)
    prefix = os.path.dirname(os.path.dirname(site)) if site else ""
    program = [prefix, os.path.join(prefix, "Scripts")] if prefix else []
    system = [_inside(found.root, name) for name in SYSTEM] if found.root != "/" or os.name == "nt" else []
    return [folder for folder in (*program, *system) if _files.names_in(folder)]


def _folders(found: LibrarySet, package: str) -> list[str]:
    """List the folders that programs give Windows to search, and those of the system."""
    site = records.site_of(found.folder)
    nvidia = os.path.join(site, "nvidia") if site else os.path.dirname(os.path.dirname(found.folder))
    wheels = [os.path.join(nvidia, package, "bin"), os.path.join(nvidia, f"cu{found.cuda}", "bin", "x86_64")]
    wheels += [os.path.join(nvidia, f"cu{found.cuda}", "bin"), os.path.join(site, "torch", "lib")]
    toolkits = _inside(found.root, "Program Files/NVIDIA GPU Computing Toolkit/CUDA")
    versions = [name for name in _files.names_in(toolkits) if name.startswith(f"v{found.cuda}.")]
    return [
        found.folder,
        *wheels,
        *(os.path.join(toolkits, name, folder) for name in versions for folder in ("bin", "bin/x64")),
        *_first_folders(found),
    ]


def _file(folder: str, name: str) -> str:
    """Return the path of a file in a folder; empty if it does not exist. Windows ignores case."""
    path = os.path.join(folder, name)
    names = (each for each in _files.names_in(folder) if each.lower() == name.lower())
    return path if os.path.lexists(path) else next((os.path.join(folder, each) for each in names), "")


def _inside(root: str, path: str) -> str:
    """Return a path below a root, in the case of the names that exist."""
    for name in path.split("/"):
        root = _file(root, name) or os.path.join(root, name)
    return root


# --- Linux: ld.so.conf -------------------------------------------------------------------------------------

MAX_FILES = 100


def configured_folders(root: str) -> Iterator[str]:
    """Yield the folders that ``/etc/ld.so.conf`` names, as paths below the root; skip unreadable files."""
    todo = ["/etc/ld.so.conf"]
    seen: set[str] = set()
    while todo:
        path = _files.real(os.path.join(root, todo.pop(0).lstrip("/")), root)
        if path in seen or len(seen) >= MAX_FILES:
            continue
        seen.add(path)
        for line in _files.text_or_empty(path).splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["include"]:
                todo += [each for word in words[1:] for each in _matching(word, path, root)]
            elif words and words[0].startswith("/") and words[0] != "/":
                yield os.path.join(root, words[0].lstrip("/"))


def _matching(pattern: str, path: str, root: str) -> list[str]:
    """List the files of an image that a pattern matches, as programs in it name them."""
    here = os.path.dirname(os.path.join("/", os.path.relpath(path, root)))
    folder, name = os.path.split(os.path.join(here, pattern))
    real = _files.real(os.path.join(root, folder.lstrip("/")), root)
    found = sorted(glob.glob(os.path.join(glob.escape(real), name)))
    return [os.path.join("/", os.path.relpath(each, root)) for each in found]


# --- Linux: run paths --------------------------------------------------------------------------------------

# The libraries that open others by their names; all others find them loaded.
OPENERS = ("", "graph")


def check_run_paths(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries whose RPATH and RUNPATH lack their own folder, if the linker does not search it."""
    if found.windows:
        return
    lost = [library for library in found.sound if found.folder not in run_paths(found, library)]
    openers = [library for library in lost if library.name in OPENERS]
    if not openers or len(found.sound) == 1 or found.folder in _searched(found, environ):
        return
    first, more = openers[0], f" and {len(lost) - 1} more" if lost[1:] else ""
    have = ":".join(first.elf.rpath + first.elf.runpath)
    text = f"{first.path}{more} does not search its own folder for the other libraries: its RUNPATH is "
    text += have or "empty"
    yield found.finding("lost-runpath", text, path=first.path, runpath=have)


def run_paths(found: LibrarySet, library: Library) -> list[str]:
    """List the folders of the RPATH and the RUNPATH of a library."""
    paths = []
    for folder in library.elf.runpath + library.elf.rpath:
        here = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", found.folder)
        if here == folder and os.path.isabs(folder):  # of the image
            here = _files.real(os.path.join(found.root, folder.lstrip("/")), found.root)
        paths.append(os.path.normpath(here))
    return paths


def _searched(found: LibrarySet, environ: Mapping[str, str]) -> set[str]:
    """List the folders with a cuDNN that the linker searches for all programs."""
    context = SearchContext(None, environ if found.root == "/" else {}, root=found.root)
    paths = [folder for _, folder in searched(("system",), CUDNN, context)]
    paths += configured_folders(found.root)
    return {_files.real(path, found.root) for path in paths}
