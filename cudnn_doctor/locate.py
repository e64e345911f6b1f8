"""Find the folders of cuDNN to examine: below a given path, or where programs search for it."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from . import pip
from .finding import Finding, Fix, Severity, finding
from .libraryset import major_of
from .read import files as _files
from .read.find import CUDNN, CUDNN_STEPS, EXPLICIT, FOLDERS, SearchContext, folders_of, searched
from .read.installation import shim_error
from .read.libraries import read_library
from .records import WHEEL_FOLDERS, lists_cudnn, owner_of, owners, site_of

# --- environments ------------------------------------------------------------------------------------------

_SETTING = re.compile(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", re.MULTILINE)
MAX_LEVELS = 6  # folders between an environment and a folder of its site-packages


def other_sites(path: str) -> list[str]:
    """List the folders that the environment around a path adds: those of .pth files, then of its base."""
    prefix, settings = _environment(path)
    library = os.path.join(prefix, "lib")
    names = [name for name in _files.names_in(library) if name.startswith("python3")] if prefix else []
    own = [path, *(os.path.join(library, name, "site-packages") for name in names)]
    added = [folder for site in own for folder in _of_pth_files(site)]
    shared = settings.get("include-system-site-packages", "").lower() == "true"
    base = _base(settings) if shared and "home" in settings else ()
    return [site for site in dict.fromkeys([*added, *base]) if os.path.isdir(site)]


def _environment(path: str) -> tuple[str, dict[str, str]]:
    """Return the folder of the environment around a path, and its pyvenv.cfg; empty if it is in none."""
    for _ in range(MAX_LEVELS):
        try:
            return path, dict(_SETTING.findall(_files.text_of(os.path.join(path, "pyvenv.cfg"))))
        except OSError:
            path = os.path.dirname(path)
    return "", {}


def _of_pth_files(site: str) -> Iterator[str]:
    """Yield the folders that the .pth files of a site-packages name, as Python reads them."""
    for name in _files.names_in(site):
        if name.endswith(".pth"):
            for line in map(str.rstrip, _files.text_or_empty(os.path.join(site, name)).splitlines()):
                if line and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.normpath(os.path.join(site, line))


def _base(settings: dict[str, str]) -> Iterator[str]:
    """Yield the folders that the site module adds for the base of an environment, also those of Debian."""
    version = re.match(r"3\.\d+", settings.get("version") or settings.get("version_info") or "")
    prefix, python = os.path.dirname(settings["home"]), f"python{version[0] if version else '3'}"
    yield os.path.join(os.path.expanduser("~/.local"), "lib", python, "site-packages")
    if prefix == "/usr":
        yield f"/usr/local/lib/{python}/dist-packages"
        yield "/usr/lib/python3/dist-packages"
    for library in ("lib64", "lib"):
        yield os.path.join(prefix, library, python, "site-packages")


# --- folders -----------------------------------------------------------------------------------------------

MAX_FOLDERS = 100_000
MAX_FOUND = 16
MAX_CLOSED = 4  # folders that one fix lets all users list
SECONDS = 10.0
LINKED = ("nvidia", "cudnn", "lib", "lib64")  # folders that installers replace by links to their own storage
STEPS = tuple(name for name, _ in CUDNN_STEPS if name in FOLDERS)  # the loader's steps that search folders
BUNDLED = ("torch/lib",)  # folders of packages, in which cudnn_ct does not search
_RENAMED = re.compile(r"libcudnn(_[a-z_]+)?-[0-9a-f]{8}\.so\.9.*")
ROOTS = (("etc", "usr"), ("nix/store",), ("Windows", "Users"))  # folders of the root of a system
OF_OTHERS = ("glibc-hwcaps", "stubs")  # replacements of libraries of the folder above, and files for linkers
NOT_ON_DISK = ("proc", "sys", "dev")  # of a root folder: kernel interfaces without end


class CannotLookError(Exception):
    """A path cannot be examined, for the reason in the message."""


class Place(NamedTuple):
    """A folder with a cuDNN, the source that named it, and findings about the way to it."""

    folder: str
    via: str
    findings: tuple[Finding, ...] = ()
    site: str = ""  # the folder with metadata of packages from which links lead to it


class Places(NamedTuple):
    """All folders with a cuDNN, each once, in the order of the search."""

    found: tuple[Place, ...]
    root: str = "/"  # the folder that stands for /: the root of an image, or / itself
    findings: tuple[Finding, ...] = ()  # about the search itself
    sites: tuple[str, ...] = ()  # the folders with metadata of packages
    shared: bool = False  # whether packages of all sites use each cuDNN, as on this machine


def named(path: str) -> Places:
    """Find the cuDNN at a path: a library, its folder, a root, a site-packages, or an image."""
    # Raises CannotLookError if the path does not exist, is neither a file nor a folder, or cannot be read.
    try:
        if not path:  # an unset variable of a script
            raise ValueError
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return _of_file(os.path.abspath(path))
        if not stat.S_ISDIR(mode):
            raise CannotLookError(f"{path} is neither a file nor a folder")
        os.listdir(path)
    except OSError as error:
        raise CannotLookError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise CannotLookError(f"{path!r} is not a path") from None
    path = os.path.abspath(path)
    if left := tuple(_left_behind(_interrupted(path), "/", Severity.ERROR)):
        return Places((), findings=left)
    if _holds_cudnn(path):
        return Places((_followed(path, "named", "/"),))
    is_root = any(all(os.path.isdir(os.path.join(path, name)) for name in names) for names in ROOTS)
    root = path if is_root else "/"
    odd: list[Finding] = []
    sites = [site_of(path)]
    folders: dict[str, str] = {}
    for folder in _below(path, root, odd, sites):
        folders.setdefault(_files.real(folder, root), site_of(folder))
    inside, *below = sites
    orphans = {site for site in below if site != path and pip.is_orphan(site, root)}
    sites = [site for site in sites if site not in orphans]
    copies = [] if inside else [each for each in folders if site_of(each) in orphans or _is_copy(each)]
    odd += [
        finding("other-cudnn", f"{folder} contains a cuDNN that no program searches for", path=folder)
        for folder in copies
    ]
    used = (folder for folder in folders if folder not in copies)
    places = [_followed(folder, f"below {path}", root)._replace(site=folders[folder]) for folder in used]
    more = other_sites(path) if root == "/" and not places else []
    wheels = (os.path.join(site, name) for site in more for name in WHEEL_FOLDERS)
    places += [_followed(folder, "the environment", root) for folder in filter(_holds_cudnn, wheels)][:1]
    return Places(tuple(places), root, tuple(odd), tuple(filter(None, [*sites, *more])), bool(more))


def usual(environ: Mapping[str, str] | None = None, path: list[str] | None = None) -> Places:
    """Find the cuDNN of this machine, in the search order of cudnn_ct."""
    environ = os.environ if environ is None else environ
    explicit = environ.get(EXPLICIT)
    context = SearchContext(explicit, environ, tuple(sys.path if path is None else path))
    places: dict[str, Place] = {}
    closed: dict[str, None] = {}
    set_folders = [(EXPLICIT, folder) for folder in _set_folders(explicit)] if explicit else []
    bundled = [("package", os.path.join(entry, name)) for entry in context.path for name in BUNDLED]
    for via, folder in (*set_folders, *searched(STEPS, CUDNN, context), *bundled):
        if _holds_cudnn(folder):
            place = _followed(folder, via, "/")
            places.setdefault(place.folder, place)
        elif blocker := _files.closed(folder):
            closed[blocker] = None
    # Programs of this user skip such folders too, so they get the cuDNN that was found.
    odd = list(_closed(list(closed), "/", Severity.NOTE if places else None))
    if explicit:
        folders = [place.folder for place in places.values() if place.via == EXPLICIT]
        named = _files.library_name(os.path.expanduser(explicit))
        majors = {
            each.major for folder in folders for each in ([named] if named else _files.cudnn_files(folder))
        }
        old = f"{explicit} is cuDNN {max(majors)}" if majors and not majors & {0, 9} else ""
        if reason := _rejected(explicit) or old or ("" if folders else f"{explicit} contains no cuDNN"):
            odd.append(finding("wrong-setting", f"{EXPLICIT}: {reason}", path=explicit))
    sites = [entry for entry in context.path if os.path.isabs(entry) and site_of(f"{entry}/nvidia") == entry]
    left: list[str] = []
    for folder in (os.path.join(site, name) for site in sites for name in _files.names_in(site)):
        if folder.endswith(".libs"):  # of auditwheel
            names = filter(_RENAMED.fullmatch, _files.names_in(folder))
            odd += _renamed([os.path.join(folder, name) for name in names], "/")
        inner = [f"{folder}/{name}" for name in _files.names_in(folder)] if folder.endswith("/nvidia") else []
        left += [path for path in (folder, *inner) if os.path.basename(path).startswith("~")]
    odd += _left_behind(left, "/")
    for folder, place in list(places.items()):
        if place.via != EXPLICIT and not any(name.major for name in _files.cudnn_files(folder)):
            places[folder] = places.pop(folder)  # last, because programs search for names with a version
    return Places(tuple(places.values()), findings=tuple(odd), sites=tuple(sites))


def _set_folders(explicit: str) -> list[str]:
    """List the folders in which the loader searches for the library that its setting names."""
    path = os.path.expanduser(explicit)
    if os.path.isdir(path):
        return folders_of(path)
    link = not _files.library_name(path)  # another name may be a link to a library
    return [os.path.dirname(_files.real(path) if link else path)]


def _rejected(explicit: str) -> str:
    """Return why cudnn_ct loads no cuDNN by a setting; empty if checks of the libraries report it."""
    path = os.path.expanduser(explicit)
    name = _files.library_name(path)
    if os.path.isdir(path) or (os.path.lexists(path) and name and not name.part):
        return ""
    error = shim_error(read_library(path))
    return str(error).partition("; ")[0] if error else ""


def _of_file(path: str) -> Places:
    if _files.library_name(path) or _files.library_name(_files.real(path)):
        place = _followed(os.path.dirname(path), "named", "/")
        parts = any(name.part for name in _files.cudnn_files(place.folder)) and _files.library_name(path)
        if os.path.dirname(_files.real(path)) != place.folder and not place.findings and not parts:
            place = _elsewhere(path, _files.real(path), "named")
        return Places((place,))
    raise CannotLookError(f"{path} is not a library of cuDNN")


def _followed(folder: str, via: str, root: str) -> Place:
    """Return the real folder; if only libcudnn.so is linked, the folder that its link leads to."""
    names = list(_files.cudnn_files(folder))
    parts = [name for name in names if name.part]
    for shim in (name for name in names if not name.part and name.major == 9):
        target = _files.real(shim.path, root)
        there = os.path.dirname(target)  # of other libraries, and not of objects with a hash for a name
        if not parts and there != _files.real(folder, root) and any(_files.cudnn_files(there)):
            return _elsewhere(shim.path, target, via)
    return Place(_files.real(folder, root), via, site=site_of(folder))


def _elsewhere(link: str, target: str, via: str) -> Place:
    text = f"{link} is a link to {target}, and the other libraries are not next to the link"
    return Place(os.path.dirname(target), via, (finding("link-elsewhere", text, path=link, target=target),))


def _closed(folders: list[str], root: str, severity: Severity | None = None) -> Iterator[Finding]:
    if folders:
        more = f" and {len(folders) - 1} more" if folders[1:] else ""
        text = f"{folders[0]}{more} cannot be listed, and may contain a cuDNN"
        fix = {"path": [pip.inside(folder, root) for folder in folders[:MAX_CLOSED]]}
        yield finding("unreadable-folder", text, severity=severity, folders=folders, fix=fix)


def _renamed(paths: list[str], root: str) -> Iterator[Finding]:
    """Describe the libraries of a cuDNN that were renamed for one package, and check each file."""
    if not paths:
        return
    text = f"{paths[0]} belongs to a copy of cuDNN that was renamed for one package"
    yield finding("renamed-cudnn", text, path=paths[0], libraries=paths)
    for library in (read_library(path, root) for path in paths):
        if library.error:
            owner = owner_of(library.path, "")
            site = site_of(os.path.dirname(library.path))
            commands = pip.of(site, root).install(owner, keep=True) if owner else ()
            again = Fix(f"install {owner or 'the package that contains it'} again", commands)
            text = str(library.error).partition("; ")[0]
            yield finding("damaged-library", text, repair=again, path=library.path)


def _holds_cudnn(folder: str) -> bool:
    return any(map(major_of, _files.cudnn_files(folder)))


def _is_copy(folder: str) -> bool:
    """Return whether programs use the wheel of a site-packages, and not this other folder in it."""
    site = site_of(folder)
    inside = os.path.relpath(folder, site or "/")
    apart = bool(site) and inside not in (*WHEEL_FOLDERS, *BUNDLED)
    return apart and lists_cudnn(site) and not owners(folder)


def _below(top: str, root: str, odd: list[Finding], sites: list[str]) -> Iterator[str]:
    """Yield the folders with a cuDNN below a folder, nearest first; add findings about limits, and sites."""
    # Links are not followed, because they may lead anywhere and in circles. Exceptions are links with the
    # names of folders of the usual layouts, behind which only the usual places are searched.
    end, todo, closed, interrupted = time.monotonic() + SECONDS, deque([top]), [], []
    seen = found = 0
    while todo:
        folder = todo.popleft()
        seen += 1
        if seen > MAX_FOLDERS or time.monotonic() > end or found >= MAX_FOUND:
            text = f"{top}: stopped after {seen:,} folders, {found} of them with a cuDNN"
            odd.append(finding("cut-short", text, path=top))
            break
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except PermissionError:
            closed.append(_files.closed(folder) or folder)
            continue
        except OSError:  # it was deleted or replaced meanwhile
            continue
        odd += _renamed([entry.path for entry in listed if _RENAMED.fullmatch(entry.name)], root)
        if any(entry.name.endswith(".dist-info") for entry in listed):
            sites.append(folder)
        files = (_files.library_name(entry.path) for entry in listed)
        holding = [folder] if any(map(major_of, filter(None, files))) else []
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                if left := _interrupted(entry.path):
                    interrupted += left
                elif entry.name not in (NOT_ON_DISK if folder == top else OF_OTHERS):
                    todo.append(entry.path)
            elif entry.name in LINKED and entry.is_symlink():
                link = _files.real(entry.path, root)
                names = [name for name in ("", "lib", "cudnn/lib") if _holds_cudnn(os.path.join(link, name))]
                holding += [os.path.join(entry.path, name).rstrip("/") for name in names]
        found += len(holding)
        yield from holding
    odd += _closed(list(dict.fromkeys(closed)), root)
    odd += _left_behind(interrupted, root)


def _interrupted(path: str) -> list[str]:
    """Return the path, or the folder around it, that a pip renamed to delete it; empty for others."""
    step = path
    while step != os.path.dirname(step):
        if os.path.basename(step).startswith("~") and site_of(step):
            return [step]
        step = os.path.dirname(step)
    return []


def _left_behind(folders: list[str], root: str, severity: Severity | None = None) -> Iterator[Finding]:
    """Report the folders that an interrupted pip left, if they contain a cuDNN."""
    for folder in folders:
        if any(_holds_cudnn(os.path.join(folder, name)) for name in ("", "lib", "cudnn/lib")):
            text = f"{folder} contains a cuDNN that an interrupted pip has renamed and not deleted"
            fix = {"path": [pip.inside(folder, root)]}
            yield finding("interrupted-pip", text, severity=severity, path=folder, fix=fix)
