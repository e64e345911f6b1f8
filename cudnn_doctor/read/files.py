"""Read file names, links, memory maps and small files; in an image, absolute links start at its root."""

from __future__ import annotations

import filecmp
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

# libcudnn.so.9, libcudnn_graph.so.9.27.0
_LIBRARY = re.compile(r"libcudnn(?:_(?P<part>[a-z_]+))?\.so(?:\.(?P<version>\d+(?:\.\d+)*))?")

DELETED = " (deleted)"  # the end of a path in a memory map
MAX_LINKS = 40  # the limit of the kernel
# cudnn64_9.dll, cudnn_graph64_9.dll
_DLL = re.compile(r"cudnn(?:_(?P<part>[a-z_]+))?64_(?P<version>\d+)\.dll", re.IGNORECASE)

_MFD_CLOEXEC = 1

MAX_NAME = 256  # bytes of a path in a file

MAX_TEXT = 8 << 20  # bytes of a text file, such as a wheel's RECORD


class LibraryName(NamedTuple):
    """A file with the name of a cuDNN library; the part is empty for libcudnn.so itself."""

    part: str
    version: str
    path: str

    @property
    def major(self) -> int:
        """The major version in its name; 0 if the name has none."""
        return int(self.version.partition(".")[0] or 0)


def library_name(path: str) -> LibraryName | None:
    """Parse the name of a cuDNN library, with or without `` (deleted)`` of a memory map; None for others."""
    name = os.path.basename(path)
    name = name[: -len(DELETED)] if name.endswith(DELETED) else name
    match = _LIBRARY.fullmatch(name) or _DLL.fullmatch(name)
    return LibraryName((match["part"] or "").lower(), match["version"] or "", path) if match else None


def real(path: str, root: str = "/") -> str:
    """Follow all links of a path, with ``root`` in place of ``/``."""
    # A link to a missing file or in a circle is returned as it is; opening it raises the error.
    if root == "/":
        return os.path.realpath(path)
    root = os.path.abspath(root)  # not its real path: /proc/1/root is a link to the root of this process
    inside = os.path.relpath(os.path.abspath(path), root)
    if inside.startswith(".."):
        return os.path.realpath(path)
    todo, done, links = inside.split("/"), root, 0
    while todo:
        name = todo.pop(0)
        step = os.path.join(done, name)
        if name == "..":
            done = done if done == root else os.path.dirname(done)
        elif name in ("", ".") or not os.path.islink(step):
            done = os.path.normpath(step)
        else:
            links += 1
            if links > MAX_LINKS:
                return os.path.join(step, *todo)
            target = os.readlink(step)
            todo = target.split("/") + todo
            if target.startswith("/"):
                done = root
    return done


def search_path(environ: Mapping[str, str]) -> list[str]:
    """List the folders of LD_LIBRARY_PATH as the dynamic linker reads it; ``.`` for an empty entry."""
    text = environ.get("LD_LIBRARY_PATH", "")
    return [entry or "." for entry in re.split("[:;]", text)] if text else []


def dangling(path: str, root: str = "/") -> str:
    """Return the first link on the way to a path whose target does not exist; empty if there is none."""
    step = done = os.path.abspath(root)
    for name in os.path.relpath(os.path.abspath(path), step).split("/"):
        step, link = os.path.join(step, name), os.path.join(done, name)
        done = real(link, root)
        if os.path.islink(link) and not os.path.exists(done):
            return step
    return ""


def link_as_text(path: str) -> str:
    """Return the name of a library in a small text file that an unpacker wrote in place of a link."""
    # Empty for other files, and if the folder does not contain that library.
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size < MAX_NAME:
            return ""
        name = text_of(path).strip()
        found = "\0" not in name and library_name(name)
        return name if found and os.path.isfile(os.path.join(os.path.dirname(path), name)) else ""
    except OSError:
        return ""


def equal(one: str, other: str) -> bool:
    """Return whether two paths lead to one file, or to files with the same contents."""
    try:
        return os.path.samefile(one, other) or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def closed(folder: str) -> str:
    """Return the folder that this user cannot enter or list, on the way to a folder; empty if it can."""
    # Also empty if the folder does not exist.
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return ""
    except PermissionError:
        blocker = os.path.abspath(folder)
    except (OSError, ValueError):
        return ""
    while True:
        try:
            os.stat(blocker)
        except OSError:  # the parent cannot be entered
            blocker = os.path.dirname(blocker)
        else:
            return blocker


def names_in(folder: str) -> list[str]:
    """List a folder; empty if it is not a folder or cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def cudnn_files(folder: str) -> Iterator[LibraryName]:
    """Yield the files of a folder that have the name of a cuDNN library."""
    names = (name for name in names_in(folder) if "cudnn" in name.lower())  # of the thousands of /usr/lib
    yield from filter(None, (library_name(os.path.join(folder, name)) for name in names))


def text_of(path: str | os.PathLike[str]) -> str:
    """Read a text file as `contents` does."""
    return contents(path).decode("utf-8", "replace")


def text_or_empty(path: str) -> str:
    """Read a text file as `text_of` does; empty if that fails."""
    try:
        return text_of(path)
    except OSError:
        return ""


class UnsuitableFileError(OSError, ValueError):
    """A file is not a regular file, or is too large."""


def contents(
    path: str | os.PathLike[str], limit: int = MAX_TEXT, check: Callable[[os.stat_result], object] = bool
) -> bytes:
    """Read a regular file of at most ``limit`` bytes. All files that a user names are read by this function.

    A pipe is not waited for and a device is not read: both raise UnsuitableFileError, as does a larger file.
    A number, which would be a file that the process has open, is a TypeError. ``check`` may raise another
    error for the status of the opened file.
    """
    # A pipe without a writer does not block.
    with open(os.fspath(path), "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnsuitableFileError(0, "is not a regular file", str(path))
        check(status)
        # The size of a file in /proc is 0.
        found = b"" if status.st_size > limit else file.read(limit + 1)
        if len(found) > limit or status.st_size > limit:
            size = max(status.st_size, len(found))
            text = f"has {size:,} bytes, more than the {limit:,} that are read"
            raise UnsuitableFileError(0, text, str(path))
        return found


def how_to_close(path: str | os.PathLike[str], status: os.stat_result) -> str:
    """Return what to do about a world-writable file or folder: those of others and shared ones stay."""
    shared = status.st_mode & stat.S_ISVTX
    own = not shared and hasattr(os, "getuid") and status.st_uid == os.getuid()
    return f"run chmod o-w {path}" if own else "choose one that only you can write"


def resource(name: str) -> str:
    """Read a text file of ``cudnn_doctor`` or ``cudnn_ct``, which may both be inside a zip file."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    loader: Any = __spec__.loader
    return str(loader.get_data(os.path.join(root, *name.split("/"))), "utf-8")


def in_memory(name: str) -> int:
    """Create a file without a path, and return its descriptor; raise OSError if that fails."""
    # A file in memory can be opened as a library even if all folders that this user may write are noexec.
    create = getattr(os, "memfd_create", None) or _memfd_create()
    if create is not None:
        with suppress(OSError):  # a sandbox such as gVisor may not have the call
            return int(create(name))
    for folder in filter(None, (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm")):
        path = os.path.join(folder, f"{name}-{os.getpid()}-{os.urandom(8).hex()}")
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
            return file
    raise OSError(0, "no folder for temporary files can be written")


def _memfd_create() -> Callable[[str], int] | None:
    """Return the function of the C library, which ``os`` lacks if Python was built for glibc < 2.27."""
    try:
        import ctypes  # only then

        function = ctypes.pythonapi.memfd_create  # a symbol of this process: no library is opened
    except (ImportError, AttributeError):
        return None

    def create(name: str) -> int:
        file = int(function(os.fsencode(name), _MFD_CLOEXEC))
        if file < 0:
            raise OSError(0, "memfd_create failed", name)
        return file

    return create


def mapped(pid: int | str) -> list[str]:
    """List the files that a process has mapped; the path of a deleted file ends in `` (deleted)``."""
    # Raises OSError if the process does not exist, or if its map is not readable.
    # As bytes, so that paths are decoded in the same way in all locales.
    with open(f"/proc/{pid}/maps", "rb") as maps:
        rows = (line.rstrip(b"\n").split(None, 5) for line in maps)
        return [os.fsdecode(name) for name in dict.fromkeys(row[5] for row in rows if len(row) == 6)]


def private(path: str, top: str = "") -> Iterator[str]:
    """Yield the file if other users cannot read it, and its folder if they cannot enter it.

    With ``top``, also the folders around it, below ``top``. A link has the mode of its target.
    """
    # Other parents are not checked: an image with root as its only user may keep files in /root.
    above = f"{top.rstrip('/')}/" if top else path
    step, bit, inner = path, stat.S_IROTH, (path, os.path.dirname(path))
    while step != os.path.dirname(step) and (step in inner or step.startswith(above)):
        with suppress(OSError):
            if not os.lstat(step).st_mode & bit:
                yield step
        step, bit = os.path.dirname(step), stat.S_IXOTH


def driver_release() -> str:
    """Return the release of the driver's kernel module, such as 580.65.06; empty if it is not loaded."""
    words = text_or_empty("/proc/driver/nvidia/version").split()
    return next((word for word in words if re.fullmatch(r"\d+(\.\d+){1,2}", word)), "")


def why_not_writable(folder: str) -> str:
    """Return why this user cannot write a folder; empty if it can."""
    if os.access(folder, os.W_OK):
        return ""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return ""
    return "which is on a read-only file system" if read_only else "which this user cannot write"


def noexec(path: str) -> bool:
    """Return whether the file system of a path forbids to load libraries from it."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False
