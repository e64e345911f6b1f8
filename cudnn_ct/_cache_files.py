"""Files in the user's cache folder: their place, and safe reads and writes of whole files."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

from ._files import UnsuitableFileError, contents


def cache_folder(setting: Any, name: str) -> tuple[Path | None, str]:
    """Return the folder for a setting, None for "off"; and the reason if no folder can be found.

    The setting None stands for the folder ``name`` in the user's cache folder.
    """
    if setting == "off":
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
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} is world-writable; run chmod o-w {path}")


def modified(path: Path) -> int:
    """Return when a file was modified, in nanoseconds; 0 if another process has just deleted it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
