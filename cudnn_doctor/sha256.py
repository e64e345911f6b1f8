"""Hash files without the libraries of OpenSSL if they, or the libz that they need, may be broken."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from .read import elf as _elf
from .read import files as _files

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
    names = [os.path.join(each, name) for each in folders for name in _files.names_in(each)]
    if any(map(_is_broken, names)):
        for module in ("_sha2", "_sha256"):  # since Python 3.12, and before
            try:
                return __import__(module).sha256  # type: ignore[no-any-return]
            except ImportError:
                continue
    import hashlib

    return hashlib.sha256


def _is_broken(path: str) -> bool:
    if not _LIBRARIES.fullmatch(os.path.basename(path)):
        return False
    try:
        _elf.read(path)
    except _elf.ElfError:
        return True
    return False
