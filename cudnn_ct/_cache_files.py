"""Files in the user's cache folder: their place, and safe reads and writes of whole files."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from cudnn_doctor.read.files import UnsuitableFileError, contents, how_to_close

from .errors import warn_caller

T = TypeVar("T")


def cache_folder(setting: Any, name: str) -> tuple[Path | None, str]:
    """Return the folder for a setting, None for "off"; and the reason if no folder can be found.

    The setting None stands for the folder ``name`` in the user's cache folder.
    """
    if isinstance(setting, str) and setting.strip().lower() == "off":
        return None, ""
    try:
        if setting is not None:
            return Path(setting).expanduser().absolute(), ""
        import platformdirs

        path = platformdirs.user_cache_path("cudnn_ct") / name
        if not path.is_absolute():  # the answer of older platformdirs where newer ones raise this
            raise RuntimeError("this user has no home folder")
        return path, ""
    except (ImportError, RuntimeError, OSError) as error:
        return None, f"tuned algorithms cannot be kept on disk: {error}"


def as_path(path: Any) -> Path:
    """Return ``path=`` as a path; raise for numbers, which would be files that the process has open."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is not a path: got {path!r}")
    return Path(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all, for its owner to change; links, devices and pipes stay."""
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise IsADirectoryError(f"{path} cannot be written: it is a folder")
        path.write_bytes(content)
        return
    try:
        path = path.resolve()
    except RuntimeError as error:  # a link to itself, before Python 3.13
        raise OSError(f"{path} cannot be written: {error}") from None
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: the folder {path.parent} does not exist")
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.touch(mode=0o644)
        new.write_bytes(content)
        new.replace(path)
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        new.unlink(missing_ok=True)


def read_file(path: Path, limit: int, owners: frozenset[int] | None = None) -> bytes:
    """Read a file of at most ``limit`` bytes; raise ValueError if it is larger or not a regular file.

    A world-writable file raises PermissionError, as does a file whose owner is not among ``owners``.
    """

    def check(status: os.stat_result) -> None:
        check_permissions(path, status)
        if owners is not None and status.st_uid not in owners:
            raise PermissionError(f"{path} belongs to user {status.st_uid}, who is not you")

    try:
        return contents(path, limit, check)
    except UnsuitableFileError as error:
        raise ValueError(error.strerror) from None


def check_permissions(path: Path, status: os.stat_result) -> None:
    """Raise if any user may write a file or folder: its content is not trusted."""
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)  # others cannot be read at all
    if is_plain and status.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} is world-writable; {how_to_close(path, status)}")


class CacheFolder:
    """A folder with a file for each key, which many processes may use at once, or nowhere.

    A problem with it costs one warning, never an error. Names of files end in ``suffix``, which has the
    version of their format. Warnings about the folder begin with ``about`` and end with ``advice``.
    """

    suffix = about = advice = ""
    earlier = ""  # the suffix of the file that an earlier version of the package had in place of the folder
    depth = 1  # the folders whose permissions are checked: this one, and those around it

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path).absolute()
        self.failed = False  # whether a warning has reported that the folder cannot be used

    def file_name(self, key: str) -> str:
        """Return the name of the file for a key."""
        return sha256(key.encode()).hexdigest() + self.suffix

    def files(self, folder: Path) -> list[Path]:
        """Return the files of this format, the oldest first, with those that killed writers left."""
        names = os.listdir(folder) if folder.exists() else []
        return sorted((folder / name for name in names if self.suffix in name), key=modified)

    def attempt(self, doing: str, work: Callable[[Path], T], otherwise: T) -> T:
        """Do work in the folder; if that fails, warn once."""
        if self.path is None:
            return otherwise
        try:
            for folder in (self.path, *self.path.parents)[: self.depth]:
                if folder.exists():
                    check_permissions(folder, folder.stat())
                elif self.earlier and (old := folder.with_suffix(self.earlier)).is_file():
                    self.warn(f"{self.about} of an earlier version, {old}, is ignored")
            return work(self.path)
        except (OSError, ValueError) as error:
            self.warn(f"{self.about} {self.path} cannot be {doing}: {error}{self.advice}")
            return otherwise

    def warn(self, trouble: str) -> None:
        """Warn, unless a warning has been given before."""
        first, self.failed = not self.failed, True
        if first:
            warn_caller(trouble)


def modified(path: Path) -> int:
    """Return when a file was modified, in nanoseconds; 0 if another process has just deleted it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
