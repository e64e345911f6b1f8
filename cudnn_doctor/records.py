"""Read the RECORD that pip wrote for each installed package, and hash the files in it."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from .read import files as _files
from .read.libraries import read_library
from .read.versions import version_numbers

# The wheels of cuDNN; pip replaces the first letters of metadata that it is about to delete.
OURS = re.compile(r"(?:nvidia|~.*)(_cudnn_cu\d+)-")
_OF_JIT = re.compile(r"(?:nvidia|~.*)(_cudnn_jit_cu\d+)-")

MAX_LEVELS = 8  # folders between a conda environment and its cuDNN
_SAMPLE = 200  # files of a package that decide which of two metadata folders describes it


# Metadata whose name and version can be arguments of a command: an option of pip is not a name.
_LABEL = re.compile(r"\w[\w.]*-\w[\w.!+]*\.dist-info", re.ASCII)

_OF_WINDOWS = re.compile(r"^nvidia/\S+\.dll,", re.MULTILINE | re.IGNORECASE)
# The folders of the wheels, and the metadata of these wheels.
_WHEELS = {"nvidia/cudnn/lib": OURS, "nvidia/cudnn/bin": OURS, "nvidia/cudnn_jit/lib": _OF_JIT}
FULL_FOLDER, WINDOWS_FOLDER, JIT_FOLDER = WHEEL_FOLDERS = tuple(_WHEELS)


class RecordError(Exception):
    """A RECORD cannot be parsed."""


class Distribution(NamedTuple):
    """An installed package that owns files of cuDNN."""

    name: str  # with the version, the name of its metadata folder
    version: str
    record: dict[str, tuple[str, int]]  # hash (algorithm=value) and size, or -1, by path in site-packages
    problem: str = ""  # why the record could not be read
    metadata: str = ""  # its metadata folder

    @property
    def label(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}"


def site_of(folder: str) -> str:
    """Find the site-packages that contains a folder of libraries; empty if none does."""
    for _ in range(5):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        if any(name.endswith(".dist-info") for name in _files.names_in(folder)):
            return folder
    return ""


def prefix_of(folder: str, root: str = "/") -> str:
    """Find the conda environment that contains a folder; empty if none does."""
    for _ in range(MAX_LEVELS):
        if os.path.isdir(os.path.join(folder, "conda-meta")):
            return folder
        if folder in (root, os.path.dirname(folder)):
            break
        folder = os.path.dirname(folder)
    return ""


def owners(folder: str) -> tuple[Distribution, ...]:
    """List the packages whose RECORD contains libraries of this folder."""
    site = site_of(folder)
    if not site:
        return ()
    inside = os.path.relpath(folder, site)
    wheel = _WHEELS.get(inside, OURS)
    found = []
    for name in _files.names_in(site):
        if not name.endswith(".dist-info"):
            continue
        metadata, ours = os.path.join(site, name), inside in WHEEL_FOLDERS and bool(wheel.match(name))
        path = os.path.join(metadata, "RECORD")
        record, problem = {}, ""
        try:
            data = _files.contents(path)  # thousands of lines of other packages
            ours = ours or any(os.fsencode(f"{inside}/{name}") in data for name in ("libcudnn", "cudnn"))
            record = parse_record(data.decode("utf-8", "replace")) if ours else {}
        except (OSError, RecordError) as error:
            problem = f"{path}: {getattr(error, 'strerror', error)}"
        if ours and _LABEL.fullmatch(wheel.sub(r"nvidia\1-", name)):
            name = wheel.sub(r"nvidia\1-", name[: -len(".dist-info")])
            package, _, version = name.partition("-")
            found.append(Distribution(package.replace("_", "-"), version, record, problem, metadata))
    return tuple(found)


def owner_of(path: str, prefix: str = "nvidia_") -> str:
    """Return the requirement for the wheel that installed a file, such as x==1.0; empty if none did."""
    site = site_of(os.path.dirname(path))
    row = f"{os.path.relpath(path, site or '/')},"
    return next((pin for pin, record in _records(site, prefix) if row in record), "")


def _records(site: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the requirement for each installed package, such as x==1.0, with the text of its RECORD."""
    for name in _files.names_in(site) if site else ():
        if name.startswith(prefix) and _LABEL.fullmatch(name):
            package, _, version = name[: -len(".dist-info")].partition("-")
            text = _files.text_or_empty(os.path.join(site, name, "RECORD"))
            yield f"{package.replace('_', '-')}=={version}", text


def lost_links(metadata: str, root: str = "/") -> list[str]:
    """List the links that a package installed and whose targets do not exist, such as those of uv."""
    site = os.path.dirname(metadata)
    try:
        record = parse_record(_files.text_of(os.path.join(metadata, "RECORD")))
    except (OSError, RecordError):
        return []
    paths = (os.path.normpath(os.path.join(site, path)) for path in record)  # a record may contain any path
    links = (path for path in paths if path.startswith(f"{site}/") and os.path.islink(path))
    return [path for path in links if not os.path.exists(_files.real(path, root))]


def installed(site: str, package: str) -> str:
    """Return the version of a package that pip lists as installed; empty if it is not."""
    start = package.replace("-", "_") + "-"
    names = (name for name in _files.names_in(site) if name.lower().startswith(start))
    return next((name[len(start) : -len(".dist-info")] for name in names if name.endswith(".dist-info")), "")


def of_windows(site: str) -> list[str]:
    """List the requirements for the wheels of NVIDIA that installed libraries of Windows, such as x==1.0."""
    return [pin for pin, record in _records(site, "nvidia_") if _OF_WINDOWS.search(record)]


def lists_cudnn(site: str) -> bool:
    """Return whether pip lists a wheel of cuDNN as installed."""
    return any(OURS.match(name) or _OF_JIT.match(name) for name in _files.names_in(site))


def wheel_folders(site: str) -> list[str]:
    """List the folders into which wheels of cuDNN install, for Windows if an installed one is for it."""
    names = _files.names_in(site)
    full = FULL_FOLDER
    for name in filter(OURS.match, names):
        if f"{WINDOWS_FOLDER}/" in _files.text_or_empty(os.path.join(site, name, "RECORD")):
            full = WINDOWS_FOLDER
    folders = [full, JIT_FOLDER] if any(map(_OF_JIT.match, names)) else [full]
    return [os.path.join(site, folder) for folder in folders]


def in_use(metadata: Sequence[str]) -> str:
    """Choose among metadata folders of one package the one whose files exist; of equals the newest."""

    def rank(folder: str) -> tuple[float, tuple[int, ...]]:
        version = version_numbers(os.path.basename(folder).partition("-")[2])
        try:
            rows = list(parse_record(_files.text_of(os.path.join(folder, "RECORD"))).items())[:_SAMPLE]
        except (OSError, RecordError):
            return 0, version
        site = os.path.dirname(folder)
        files = [(os.path.join(site, path), size) for path, (_, size) in rows if size >= 0]
        good = sum(os.path.isfile(path) and os.stat(path).st_size == size for path, size in files)
        return good / max(len(files), 1), version

    return metadata[0] if len(metadata) == 1 else max(metadata, key=rank)


def live(found: Sequence[Distribution], version: str) -> tuple[Distribution, ...]:
    """Drop stale metadata: of the metadata of one package, the one of the version on disk counts."""
    # pip renames metadata while it replaces a package. A site-packages copied over another one keeps both.
    kept = [owner for owner in found if not os.path.basename(owner.metadata).startswith("~")]
    kept.sort(key=lambda owner: version_numbers(owner.version), reverse=True)
    kept.sort(key=lambda owner: not f"{owner.version}.".startswith(f"{version}."))
    best = {owner.name: owner for owner in reversed(kept)}
    return tuple(owner for owner in kept if best[owner.name] is owner)


def parse_record(text: str) -> dict[str, tuple[str, int]]:
    """Parse a RECORD, which has lines of path, hash and size; raise RecordError for other texts."""
    record = {}
    try:
        for number, row in enumerate(csv.reader(text.splitlines(), strict=True), 1):
            if not row:
                continue
            if len(row) != 3 or not row[0]:
                raise RecordError(f"line {number} has {len(row)} fields")
            if row[2] and not re.fullmatch(r"\d{1,18}", row[2], re.ASCII):
                raise RecordError(f"line {number} has the size {row[2][:20]!r}")
            record[row[0]] = (row[1], int(row[2] or -1))
    except csv.Error as error:
        raise RecordError(str(error)) from None
    if not record:
        raise RecordError("is empty")
    return record


# --- hashes ------------------------------------------------------------------------------------------------

_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_LIBRARIES = re.compile(r"lib(z|crypto|ssl)\.so[.\d]*")


def sha256(path: str) -> str:
    """Return the hash of a file as a RECORD has it, or why the file cannot be read."""
    digest, buffer = _algorithm()(), bytearray(1 << 18)
    view = memoryview(buffer)
    try:
        with open(path, "rb", buffering=0) as file:
            for size in iter(lambda: file.readinto(buffer), 0):
                digest.update(view[:size])
    except OSError as error:
        return error.strerror or "unreadable"
    bits = int.from_bytes(digest.digest(), "big") << 2  # the module base64 is linked with libz
    return "sha256=" + "".join(_BASE64[bits >> shift & 63] for shift in range(252, -1, -6))


def sha256_of(paths: Iterable[str]) -> dict[str, str]:
    """Hash many files in two threads, which takes half the time on two cores."""
    # If no thread can start, because of a limit of processes, the calling thread hashes all files.
    from threading import Thread  # takes 1 ms: only --deep hashes large files

    largest = sorted(paths, key=lambda path: -os.path.getsize(path))
    done: dict[str, str] = {}

    def work() -> None:
        while largest:
            with suppress(IndexError):  # the other thread took it
                path = largest.pop(0)
                done[path] = sha256(path)

    _algorithm()
    other = Thread(target=work)
    try:
        other.start()
    except RuntimeError:
        work()
        return done
    work()
    other.join()
    return done


def of_text(text: str) -> str:
    """Return the hash of a text in hexadecimal digits."""
    return str(_algorithm()(text.encode("utf-8", "surrogateescape")).hexdigest())


@lru_cache(maxsize=None)
def _algorithm() -> Callable[..., Any]:
    """Choose OpenSSL's function, which is five times as fast as Python's own, unless it may be broken."""
    folders = filter(os.path.isabs, _files.search_path(os.environ))
    paths = [os.path.join(each, name) for each in folders for name in _files.names_in(each)]
    if any(_LIBRARIES.fullmatch(os.path.basename(path)) and read_library(path).error for path in paths):
        for module in ("_sha2", "_sha256"):  # since Python 3.12, and before
            try:
                return __import__(module).sha256  # type: ignore[no-any-return]
            except ImportError:
                continue
    import hashlib

    return hashlib.sha256
