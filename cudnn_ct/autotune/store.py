"""Tuned algorithms on disk: one small SQLite file in the user's cache folder, shared by processes.

An entry is only advice: whatever is wrong with the file costs one warning, and neither an error nor a
wrong result. Rows are JSON text; nothing in them is evaluated.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._caches import BoundedDict
from .._config import config
from ..errors import warn_caller

if TYPE_CHECKING:
    import sqlite3  # elsewhere when it is needed: it takes time, and some Pythons are built without it

__all__ = ["Store", "export_algo_cache", "import_algo_cache", "store"]

# The version is part of the table's name: a package that writes other rows makes its own table next to this.
TABLE = "algo_cache_2"
OLD_TABLE = "choices_1"
FORMAT = "cudnn_ct algo_cache 2"
NAME = "algo_cache.sqlite"  # the default file
MAX_ROWS = 100_000
BUSY_SECONDS = 2.0
WORK_SECONDS = 5.0  # for one transaction, apart from waiting for other processes
MAX_BYTES = 1 << 20  # of a key or an entry
BUSY, LOCKED, CORRUPT, NOT_A_DATABASE = 5, 6, 11, 26  # SQLite's codes

CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT PRIMARY KEY, entry TEXT)"
KEPT = CREATE.replace(" IF NOT EXISTS", "").encode()  # as SQLite keeps it
SCHEMA = "SELECT type, sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL"
ROW_BYTES = 4  # that a row takes in the file at least, even if it is empty
# A replaced row keeps its rowid, as it would not with INSERT OR REPLACE: rowids have no gaps, and the oldest
# rows that are too many are found without counting, however often the same entries are imported.
PUT = f"INSERT INTO {TABLE} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET entry = excluded.entry"
TRIM = f"DELETE FROM {TABLE} WHERE rowid <= (SELECT max(rowid) FROM {TABLE}) - ?"

_T = TypeVar("_T")
STORES = 64  # settings for which a process keeps one
_STORES = BoundedDict(STORES)

# Held around all use of SQLite and around each fork: a child forked while another thread is inside SQLite
# would inherit its locks for good.
_LOCK = threading.RLock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class Store:
    """A map from keys to entries, in the file ``path`` that many processes may use at once, or nowhere.

    Parameters
    ----------
    path : path or None
        The file; it and its folder are made by the first entry. None remembers nothing.
    timeout : float
        Seconds to wait for other processes that write. Once that was not enough, nothing waits again.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, timeout: float = BUSY_SECONDS) -> None:
        self.path = None if path is None else Path(path).absolute()
        self._timeout = timeout
        self._readable = self._writable = path is not None
        self._warned = False

    @property
    def failed(self) -> bool:
        """Whether something was found wrong with the file, of which a warning told."""
        return self._warned

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the entry for a key, None where there is none that can be read."""
        return self._read("WHERE key = ?", key).get(key)

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Store an entry, which JSON must be able to hold; it replaces the one that is there."""
        self._write(PUT, [_row(key, entry)])

    def export(self) -> dict[str, dict[str, Any]]:
        """Return all entries, the oldest first, for another store's :meth:`load`."""
        return self._read("ORDER BY rowid")

    def load(self, entries: Mapping[str, dict[str, Any]]) -> int:
        """Store these entries; return how many were written, 0 where none can be.

        A bad one is a TypeError or ValueError, and none is written then.
        """
        if not isinstance(entries, Mapping):
            raise TypeError(f"entries are a mapping of keys to dicts, not {entries!r}")
        rows = [_row(key, entry) for key, entry in entries.items()]
        return len(rows) if self._write(PUT, rows) else 0

    def clear(self) -> None:
        """Delete all entries; tables of other versions of the package stay."""
        if os.path.exists(self.path or ""):
            self._write(f"DELETE FROM {TABLE}", [()])

    def _read(self, which: str, *parameters: str) -> dict[str, dict[str, Any]]:
        def read(database: sqlite3.Connection) -> list[Any]:
            _check_schema(database)
            return _fetch(database, f"SELECT key, entry FROM {TABLE} {which}", parameters)

        rows: list[Any] = self._attempt("read", read, [])
        entries = dict(filter(None, (_decoded(*row) for row in rows)))
        if len(entries) < len(rows):
            self._warn(f"the algorithm cache {self.path} has a row that is not a JSON object")
        return entries

    def _write(self, statement: str, rows: list[Any]) -> bool:
        def write(database: sqlite3.Connection) -> bool:
            database.execute("BEGIN IMMEDIATE")  # a lock that is raised later may fail without waiting
            database.execute(CREATE)
            _check_schema(database)
            database.executemany(statement, rows)
            database.execute(TRIM, (MAX_ROWS,))
            database.execute("COMMIT")
            return True

        return self._attempt("written", write, False)

    def _attempt(self, doing: str, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """Do work in one transaction; where that fails, learn from it and warn once."""
        with _LOCK:
            if not (self._readable if doing == "read" else self._writable):
                return otherwise
            import sqlite3

            try:
                with closing(self._connect(doing)) as database:
                    return work(database)
            except (sqlite3.Error, OSError) as error:
                trouble = f"the algorithm cache {self.path} cannot be {doing}: {error}"
                if doing == "read" and ("no such table" in str(error) or not os.path.exists(self.path or "")):
                    if OLD_TABLE not in str(error):
                        return otherwise  # nothing is written yet
                else:
                    self._learn(doing, error)
        self._warn(trouble)
        return otherwise

    def _connect(self, doing: str) -> sqlite3.Connection:
        """Open the file for one transaction: a connection must cross neither a fork nor a thread.

        The journal stays SQLite's default: a write-ahead log needs shared memory, which network file systems
        lack. For reading, ``rw`` makes no file and takes a read-only one, and can undo what a killed writer
        left, which ``ro`` cannot.
        """
        import sqlite3

        assert self.path is not None
        if self.path.is_dir():
            raise IsADirectoryError(f"it is a folder; a file in it would be {self.path / NAME}")
        if self.path.exists() and self.path.stat().st_mode & stat.S_IWOTH:
            raise PermissionError(f"everybody may write it, and it is not believed; chmod o-w {self.path}")
        if doing == "written":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        uri = f"{self.path.as_uri()}?mode={'rw' if doing == 'read' else 'rwc'}"
        database = sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None)
        database.text_factory = bytes  # damaged text is then a bad row, not a failed query
        # A hostile file holds a tree of pages without an end, or text whose pages form a circle.
        end = time.monotonic() + self._timeout + WORK_SECONDS
        database.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        return database

    def _learn(self, doing: str, error: Exception) -> None:
        """Stop what would fail again; a file that is locked now may be free later, but is not waited for."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without its details
        if code in (BUSY, LOCKED):
            self._timeout = 0.0
        else:
            self._writable = False
            self._readable &= doing == "written" and code not in (CORRUPT, NOT_A_DATABASE)

    def _warn(self, trouble: str) -> None:
        with _LOCK:
            first, self._warned = not self._warned, True
        if first:
            cure = "remove the file, or set" if os.path.isfile(self.path or "") else "set"
            text = f"{trouble}. Algorithms are timed again in this process; {cure} CUDNN_CT_ALGO_CACHE"
            warn_caller(f"{text} to another path or to 'off'")


def store() -> Store:
    """Return the process's store for the present ``config.algo_cache``."""
    setting = config.algo_cache
    with _LOCK:
        if setting in _STORES:
            known: Store = _STORES[setting]
            return known
        path, trouble = _place(setting)
        made = _STORES[setting] = Store(path)
    if trouble:
        made._warn(trouble)
    return made


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
    entries = store().export()
    text = json.dumps({"format": FORMAT, "entries": entries}, indent=1)
    _replace(Path(path), text + "\n")
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
    ValueError
        The file has another format, or one of its entries is bad; nothing is imported then.
    OSError
        It cannot be read.

    Examples
    --------
    As of :func:`export_algo_cache`.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, dict) or content.get("format") != FORMAT or "entries" not in content:
            raise ValueError(f'not a JSON object with "format": "{FORMAT}" and "entries"')
        return store().load(content["entries"])
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is not an exported algorithm cache: {error}") from error


def _place(setting: Any) -> tuple[Path | None, str]:
    """The path for a setting, None for nowhere; and what is wrong, if anything."""
    if setting == "off":
        return None, ""
    try:
        import sqlite3  # noqa: F401

        return _default_path() if setting is None else Path(setting).expanduser().absolute(), ""
    except (ImportError, RuntimeError, OSError) as error:
        return None, f"tuned algorithms cannot be kept in a file: {error}"


def _default_path() -> Path:
    import platformdirs

    path = platformdirs.user_cache_path("cudnn_ct") / NAME
    if not path.is_absolute():  # the answer of older platformdirs where newer ones raise this
        raise RuntimeError("this user has no home folder")
    return path


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all: whoever reads it meanwhile has the one that was there."""
    if path.exists() and not path.is_file():  # /dev/stdout, say, which nothing can take the place of
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _check_schema(database: sqlite3.Connection) -> None:
    """Raise unless the table is exactly ours: views, triggers and generated columns run code of the file."""
    import sqlite3

    found = database.execute(SCHEMA, (TABLE,)).fetchmany(2)
    if not found:
        old = database.execute(SCHEMA, (OLD_TABLE,)).fetchone()
        why = f"; {OLD_TABLE}, the table of an earlier version, is ignored" if old else ""
        raise sqlite3.OperationalError(f"no such table: {TABLE}{why}")
    if found != [(b"table", KEPT)]:
        raise sqlite3.DatabaseError(f"{TABLE} is not the table that cudnn_ct makes")


def _fetch(database: sqlite3.Connection, query: str, parameters: tuple[str, ...]) -> list[Any]:
    """Fetch the rows of a query; a sound file is larger than all of its rows."""
    import sqlite3

    cursor, rows = database.execute(query, parameters), []
    pages, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    left = pages * size
    for row in cursor:
        left -= ROW_BYTES + sum(len(value) for value in row if isinstance(value, bytes))
        if left < 0:
            raise sqlite3.DatabaseError("its rows are larger than the file")
        rows.append(row)
    return rows


def _row(key: object, entry: object) -> tuple[str, str]:
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {key!r}")
    if not isinstance(entry, dict) or not all(isinstance(name, str) for name in entry):
        raise TypeError(f"the entry for {key!r} is a dict with names that are str, not {entry!r}")
    try:
        key.encode()
        return key, json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the entry for {key!r} cannot be written as JSON: {error}") from error


def _decoded(key: Any, text: Any) -> tuple[str, dict[str, Any]] | None:
    try:
        entry = json.loads(text)
        return (key.decode(), entry) if isinstance(entry, dict) else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None
