"""Tuned algorithms on disk: a folder in the user's cache folder, with one JSON file for each problem.

An entry is only advice: a problem with the folder costs one warning, never an error or a wrong result. Files
are replaced as a whole, so any number of processes may read and write at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cudnn_doctor.read.files import UnsuitableFileError, contents

from .._cache_files import CacheFolder, as_path, cache_folder, read_file, replace_file
from .._caches import BoundedDict
from .._config import config

FORMAT = "cudnn_ct algo_cache 2"
# The version is part of the names: a package that writes other rows makes its own files next to these.
SUFFIX = ".algo_cache_2.json"
NAME = "algo_cache"  # the default folder
MAX_ENTRIES = 16_384
MAX_BYTES = 1 << 20  # of an entry
MAX_EXPORT = 256 << 20  # bytes of an exported file

STORES = 64  # settings for which a process keeps one
_STORES = BoundedDict(STORES)


class Store(CacheFolder):
    """Entries by keys, in a folder that many processes may use at once, or nowhere if ``path`` is None."""

    suffix, about, earlier = SUFFIX, "the algorithm cache", ".sqlite"

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the entry for a key; None if there is none that can be read."""
        return self.attempt("read", lambda folder: self._read(folder / self.file_name(key)).get(key), None)

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Store an entry, which JSON must be able to hold; it replaces the one for the same key."""
        self.load({key: entry})

    def export(self) -> dict[str, dict[str, Any]]:
        """Return all entries, the oldest first, for another store's :meth:`load`."""

        def read(folder: Path) -> dict[str, dict[str, Any]]:
            files = [file for file in self.files(folder) if file.name.endswith(SUFFIX)]
            return {key: entry for file in files for key, entry in self._read(file).items()}

        return self.attempt("read", read, {})

    def load(self, entries: Mapping[str, dict[str, Any]]) -> int:
        """Store all entries, or none and raise if one is bad; return their number, 0 if the folder fails."""
        if not isinstance(entries, Mapping):
            raise TypeError(f"entries must be a mapping of keys to dicts: got {entries!r}")
        texts = {self.file_name(key): _text(key, entry) for key, entry in entries.items()}

        def write(folder: Path) -> int:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            for name, text in texts.items():
                replace_file(folder / name, text.encode())
            for file in self.files(folder)[:-MAX_ENTRIES]:
                file.unlink(missing_ok=True)
            return len(texts)

        return self.attempt("written", write, 0)

    def clear(self) -> None:
        """Delete all entries; files of other versions of the package stay."""

        def delete(folder: Path) -> None:
            for file in self.files(folder):
                file.unlink(missing_ok=True)

        self.attempt("written", delete, None)

    def _read(self, file: Path) -> dict[str, dict[str, Any]]:
        """Return the key and the entry of a file; nothing if it is malformed."""
        try:
            content = json.loads(read_file(file, MAX_BYTES))
            key, entry = content["key"], content["entry"]
            if self.file_name(key) == file.name and isinstance(entry, dict):
                return {key: entry}
        except FileNotFoundError:
            return {}
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            pass
        self.warn(f"the algorithm cache {self.path} has a malformed file, {file.name}")
        return {}

    def warn(self, trouble: str) -> None:
        """Warn of trouble, and of its effect, once."""
        super().warn(
            f"{trouble}. Algorithms are timed again in this process; set CUDNN_CT_ALGO_CACHE to another "
            "folder or to 'off'"
        )


def store() -> Store:
    """Return the process's store for the present ``config.algo_cache``."""
    setting = config.algo_cache
    # Without a lock, which a forked child might inherit: two threads may make equal stores at once.
    known: Store | None = _STORES.get(setting)
    if known is None:
        path, trouble = cache_folder(setting, NAME)
        known = _STORES.setdefault(setting, Store(path))
        if trouble:
            known.warn(trouble)
    return known


def export_algo_cache(path: str | os.PathLike[str]) -> int:
    """Write the tuned algorithms of this machine to a JSON file, and return their number.

    Parameters
    ----------
    path : path
        The file to write; an existing one is replaced as a whole.

    Returns
    -------
    int

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "algo_cache.json")
    ...     exported, imported = ct.export_algo_cache(path), ct.import_algo_cache(path)
    """
    file, entries = as_path(path), store().export()
    text = json.dumps({"format": FORMAT, "entries": entries}, indent=1)
    replace_file(file, f"{text}\n".encode())
    return len(entries)


def import_algo_cache(path: str | os.PathLike[str]) -> int:
    """Read a file of :func:`export_algo_cache`; its entries replace the entries of this machine.

    An entry is advice: it is checked against the limits of each call, and cuDNN may reject it.

    Parameters
    ----------
    path : path

    Returns
    -------
    int
        The number of entries written; 0 if the cache is off or cannot be written.

    Raises
    ------
    TypeError
        ``path`` is a number.
    ValueError
        The file has another format, or one of its entries is bad; nothing is imported then.
    OSError
        It cannot be read.

    Examples
    --------
    As of :func:`export_algo_cache`.
    """
    file = as_path(path)
    try:
        content = json.loads(contents(file, MAX_EXPORT))
        if not isinstance(content, dict) or content.get("format") != FORMAT or "entries" not in content:
            raise ValueError(f'not a JSON object with "format": "{FORMAT}" and "entries"')
        return store().load(content["entries"])
    except UnsuitableFileError as error:
        raise ValueError(f"{os.fspath(path)} {error.strerror}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is not an exported algorithm cache: {error}") from error


def _text(key: str, entry: object) -> str:
    """Return the content of the file for an entry; raise if JSON cannot hold it."""
    if not isinstance(entry, dict):
        raise TypeError(f"the entry for {key!r} must be a dict: got {entry!r}")
    return json.dumps({"key": key, "entry": entry}, allow_nan=False)
