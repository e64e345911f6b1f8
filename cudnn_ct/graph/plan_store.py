"""Compiled plans on disk and in the process: the format, a folder of files, and imported plans.

The folder ``plans`` is in the folder of the algorithm cache. Calls read and write it only with
``config.plan_cache``; imported plans are used without it. A plan contains machine code, so files are read
only if they belong to this user and are not world-writable. A problem with the folder costs one warning: the
plan is compiled again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from .._cache_files import CacheFolder, cache_folder, modified, read_file, replace_file
from .._caches import BoundedDict
from .._config import config
from ..context import Context
from ..cuda import stream as streams
from ..errors import warn_caller
from ..facts import Fact, Target, facts, ignores
from .offline import Planner, target_of, target_of_device

# --- the format of files -----------------------------------------------------------------------------------

# A file is a sequence of entries: one in a file of the store, many in an export. An entry is:
#
#     {"format": "cudnn_ct plan 1", "size": 76311, "sha256": "..."}
#     {"key": "...", "facts": {...}}
#     cuDNN's JSON of the plan; empty for the choice of an engine
#
# ``size`` and ``sha256`` are those of all that follows the first line.

FORMAT = "cudnn_ct plan 1"
DEVICE, DESCRIPTION = "device", "description"  # origins of an entry
MAX_HEADER = 1024  # bytes


class StoredPlan(NamedTuple):
    """A compiled plan, or the choice of an engine for a problem."""

    key: str  # all that it depends on: versions, the GPU, the graph or problem with strides and attributes
    facts: dict[str, Any]  # the candidate as JSON, and its ``origin``: the device that selected it
    text: bytes = b""  # cuDNN's JSON of the plan; empty for a choice

    @property
    def from_device(self) -> bool:
        """Whether a device of the kind in the key selected the engine; older entries do not say so."""
        return self.facts.get("origin") == DEVICE


def encode(entry: StoredPlan) -> bytes:
    """Return the bytes of an entry."""
    about = json.dumps({"key": entry.key, "facts": entry.facts}, allow_nan=False)
    body = about.encode() + b"\n" + entry.text
    header = {"format": FORMAT, "size": len(body), "sha256": sha256(body).hexdigest()}
    return json.dumps(header).encode() + b"\n" + body


def decode(content: bytes) -> Iterator[StoredPlan | str]:
    """Yield entries, or why they must not be used; raise ValueError if a header is missing."""
    place = 0
    while place < len(content):
        line, found, _ = content[place : place + MAX_HEADER].partition(b"\n")
        size, digest, written_by = _header(line) if found else (None, "", "")
        if size is None:
            raise ValueError(f"expected an entry of {FORMAT!r} at byte {place}: got {bytes(line[:40])!r}")
        place += len(line) + 1
        body = content[place : place + size]
        place += size
        if written_by != FORMAT:
            yield f"the format is {written_by!r}, expected {FORMAT!r}"
        elif len(body) != size or sha256(body).hexdigest() != digest:
            yield "the hash does not match: the file is damaged or was changed"
        else:
            yield _entry(body)


def _header(line: bytes) -> tuple[int | None, str, str]:
    """Return the size, the hash and the format of an entry; the size is None if the line is not a header."""
    try:
        header = json.loads(line)
        size, digest, written_by = header["size"], header["sha256"], header["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "", ""
    right = type(size) is int and size >= 0 and isinstance(digest, str) and isinstance(written_by, str)
    return (size if right else None), digest, written_by


def _entry(body: bytes) -> StoredPlan | str:
    line, _, text = body.partition(b"\n")
    try:
        found = json.loads(line)
        key, about = found["key"], found["facts"]
        json.dumps(about, allow_nan=False)
        key.encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "the entry is malformed"
    if not isinstance(about, dict):
        return "the entry is malformed"
    return StoredPlan(key, about, text)


# --- the store ---------------------------------------------------------------------------------------------

ROOT = 0  # the user who may write any file
SUFFIX = ".plan_1"  # plans of other formats have other names
MAX_PLAN = 64 << 20  # bytes of one plan
MAX_FOLDER = 512 << 20  # bytes of all plans; the least recently used are deleted first
MAX_IMPORTED = 16384  # plans in the memory of a process
UNUSED = 3600e9  # nanoseconds after which the time of a file that is used is set again
LOCK_SECONDS = 60.0  # a process that compiles for longer is not waited for

_STORES = BoundedDict(64)
_imported = BoundedDict(MAX_IMPORTED)  # plans by key, with whether their first result is to be checked


class _Thread(threading.local):
    """The lock files that this thread holds, and whether it is timing engines.

    A finalizer may need a plan while another one is compiled.
    """

    def __init__(self) -> None:
        self.held: set[Path] = set()
        self.timing = False


_thread = _Thread()


class PlanStore(CacheFolder):
    """Compiled plans by key, in a folder that many processes may use at once, or nowhere."""

    suffix, about, depth = SUFFIX, "the stored plans in", 2
    advice = "; set CUDNN_CT_ALGO_CACHE to another folder or to 'off'"

    def get(self, key: str) -> StoredPlan | None:
        """Return the imported plan for a key, or that of the folder."""
        imported: tuple[StoredPlan, bool] | None = _imported.get(key)
        if imported is not None:
            return imported[0]

        def read(folder: Path) -> StoredPlan | None:
            entry = self._read(folder / self.file_name(key))
            return entry if entry is not None and entry.key == key else None

        return self.attempt("read", read, None)

    def put(self, *entries: StoredPlan) -> int:
        """Write plans, and delete the least recently used ones beyond the limit; return how many it wrote."""

        def write(folder: Path) -> int:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for entry in entries:
                replace_file(folder / self.file_name(entry.key), encode(entry))
            self._evict(folder)
            return len(entries)

        return self.attempt("written", write, 0)

    def discard(self, key: str, reason: str) -> None:
        """Drop a plan that must not be used, and warn with one line."""
        _imported.pop(key, None)
        self.attempt("written", lambda folder: (folder / self.file_name(key)).unlink(missing_ok=True), None)
        warn_caller(f"a stored plan is ignored: {reason}")

    def import_(self, entries: Mapping[str, StoredPlan], *, verify: bool) -> None:
        """Add plans from a file that the user named; those to ``verify`` stay in the process."""
        if not verify:
            written = self.put(*entries.values())
            entries = {} if written else entries
        for key, entry in entries.items():
            _imported[key] = entry, verify

    def replace(self, key: str, entry: StoredPlan, *, verify: bool) -> None:
        """Store a plan in place of an imported or stored one; it may be for one GPU alone, with its key."""
        _imported.pop(key, None)
        self.import_({entry.key: entry}, verify=verify)

    def needs_check(self, key: str) -> bool:
        """Return whether the first result of a plan is to be compared with that of another engine."""
        return bool(_imported.get(key, (None, False))[1])

    def checked(self, key: str) -> None:
        """Keep a plan whose first result was right, for other processes too."""
        entry, _ = _imported.pop(key, (None, False))
        if entry is not None and not self.put(entry):
            _imported[key] = entry, False

    def entries(self) -> list[StoredPlan]:
        """Return all plans, the least recently used first, imported ones last."""

        def read(folder: Path) -> list[StoredPlan]:
            files = (file for file in self.files(folder) if file.suffix == SUFFIX)
            return [entry for entry in map(self._read, files) if entry is not None]

        nothing: list[StoredPlan] = []
        found = {entry.key: entry for entry in self.attempt("read", read, nothing)}
        imported = {key: entry for key, (entry, _) in list(_imported.items())}  # another thread may add one
        return list((found | imported).values())

    def clear(self) -> int:
        """Delete all plans and locks, and return how many plans there were."""
        imported = len(_imported)
        _imported.clear()

        def delete(folder: Path) -> int:
            files = self.files(folder)
            for file in (*files, *folder.glob("*.lock")):
                file.unlink(missing_ok=True)
            return sum(file.suffix == SUFFIX for file in files)

        return imported + self.attempt("written", delete, 0)

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Let one process at a time compile a plan; yield whether another one was waited for."""
        # One of 256 files: plans whose hashes have the same first byte share one.
        name = f"{self.file_name(key)[:2]}.lock"
        file = self.path and self.path / name

        def opened(folder: Path) -> int:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

        descriptor = None if file in _thread.held else self.attempt("written", opened, None)
        if file is None or descriptor is None:
            yield False
            return
        _thread.held.add(file)
        try:
            yield self.attempt("locked", lambda _: _wait_for(descriptor), False)
        finally:
            _thread.held.discard(file)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor too
            os.close(descriptor)

    def _read(self, file: Path) -> StoredPlan | None:
        """Return the plan in a file; warn and return None if it must not be used."""
        try:
            content = read_file(file, MAX_PLAN, frozenset({ROOT, os.geteuid()}))
            found = next(decode(content), "the file is empty")
        except FileNotFoundError:
            return None
        except (ValueError, PermissionError) as error:
            found = str(error)
        if isinstance(found, StoredPlan):
            if time.time_ns() - modified(file) > UNUSED:
                with suppress(OSError):  # the time of the last use decides which plans are deleted
                    os.utime(file)
            return found
        self.warn(f"the stored plan {file} is ignored: {found}")
        return None

    def _evict(self, folder: Path) -> None:
        """Delete the least recently used plans beyond the limit."""
        files = []
        with os.scandir(folder) as found:
            for entry in found:
                with suppress(FileNotFoundError):  # another process has just deleted it
                    files += [(entry, entry.stat())] if SUFFIX in entry.name else []
        excess = sum(status.st_size for _, status in files) - MAX_FOLDER
        if excess <= 0:
            return
        for entry, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
            if excess <= 0:
                return
            Path(entry).unlink(missing_ok=True)
            excess -= status.st_size


def uses_plans(compiled: bool = True) -> bool:
    """Return whether calls look for stored plans of engines, ``compiled`` at run time or not.

    The folder has plans of compiled engines alone; an imported file may have both.
    """
    return bool(_imported) or (compiled and config.plan_cache and folder_store().path is not None)


def plan_store() -> PlanStore:
    """Return the store of calls: without ``config.plan_cache`` it has only imported plans, and no folder."""
    return folder_store() if config.plan_cache else _NOWHERE


def folder_store() -> PlanStore:
    """Return the store in the folder of the present ``config.algo_cache``, for commands that name it."""
    setting = config.algo_cache
    known: PlanStore | None = _STORES.get(setting)
    if known is None:
        folder, _ = cache_folder(setting, "algo_cache")  # the algorithm cache warns about a missing folder
        known = _STORES[setting] = PlanStore(folder and folder / "plans")
    return known


_NOWHERE = PlanStore(None)


@contextmanager
def timing() -> Iterator[None]:
    """Store no plans in a block that times engines: only that of the fastest engine is used again."""
    outer, _thread.timing = _thread.timing, True
    try:
        yield
    finally:
        _thread.timing = outer


def is_timing() -> bool:
    """Return whether this thread is timing engines."""
    return _thread.timing


def _wait_for(descriptor: int) -> bool:
    """Lock a file; return whether another process had it. After a minute, go on without the lock.

    Raises OSError if the file system has no locks, as some network file systems.
    """
    end = time.monotonic() + LOCK_SECONDS
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:  # another process has the lock
            if time.monotonic() > end:
                return True
        waited = True
        time.sleep(0.005)


# --- kernels that are bound to a GPU -----------------------------------------------------------------------

UNIT = "unit"  # the UUID of that GPU, among the facts of an entry


def marked(entry: StoredPlan, context: Context | Planner) -> StoredPlan | str:
    """Return an entry for the store; if its kernels are bound to the GPU, with that GPU and the key of it.

    Returns the reason if they are, and were compiled for a GPU that is only described.
    """
    if isinstance(context, Context) and _fact(entry.text, target_of(context)):
        facts_of = {**entry.facts, UNIT: streams.device_uuid(context.device)}
        entry = entry._replace(key=_own_key(entry.key, context), facts=facts_of)
    return why_elsewhere(entry.text, entry.facts, context) or entry


def key_here(store: PlanStore, key: str, context: Context | Planner) -> str:
    """Return the key of the entry for this GPU alone if there is one, else that for all GPUs of its kind."""
    # Machines may share a folder: with one entry, each of their GPUs would drop that of the others.
    if isinstance(context, Context) and facts("stored", "all", target_of(context)):
        own = _own_key(key, context)
        if store.get(own) is not None:
            return own
    return key


def _own_key(key: str, context: Context) -> str:
    end = f" | {UNIT} {streams.device_uuid(context.device)}"
    return key if key.endswith(end) else key + end


def why_elsewhere(text: bytes, facts_of: Mapping[str, Any], context: Context | Planner) -> str:
    """Return why kernels in cuDNN's JSON must not be used on a GPU; empty if they may be."""
    device = context.device if isinstance(context, Context) else None
    reason = _reason(text, facts_of, target_of(context), device)
    return reason and f"its kernels must be compiled on the GPU that runs them: {reason}"


def why_not_imported(entry: StoredPlan, devices_of_kind: Iterable[int]) -> str:
    """Return why no device may use the kernels of an entry; empty if one may, or if there is none."""
    reasons = [
        _reason(entry.text, entry.facts, target_of_device(device), device) for device in devices_of_kind
    ]
    return f"compiled elsewhere: {reasons[0]}" if reasons and all(reasons) else ""


def _reason(text: bytes, facts_of: Mapping[str, Any], target: Target, device: int | None) -> str:
    fact = _fact(text, target)
    if fact is None or (device is not None and facts_of.get(UNIT) == streams.device_uuid(device)):
        return ""
    return fact.reason


def _fact(text: bytes, target: Target) -> Fact | None:
    for fact in facts("stored", "all", target):
        if fact.row["kernels"].encode() in text and not ignores(fact.name):
            return fact
    return None
