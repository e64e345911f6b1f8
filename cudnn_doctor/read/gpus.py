"""GPUs as commands name them: by name, by compute capability, or by a file with a description."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from . import files as _files

MAX_BYTES = 1 << 20  # bytes of a description; cuDNN writes one kilobyte
_CAPABILITY = re.compile(r"(?:sm_?|compute_)?(\d{1,2})\.?(\d)[af]?", re.ASCII)
_MAKER = re.compile(r"nvidia|geforce|tesla|[\s_-]")  # left out of names, so that "RTX 4090" is rtx4090


class Gpu(NamedTuple):
    """A GPU that a user named."""

    arch: int  # its compute capability times 10
    name: str = ""  # of a shipped description; empty if none has this compute capability
    file: str = ""  # of a description that the user has


def parse(text: str) -> Gpu:
    """Find a GPU; raise ValueError with the choices.

    ``text`` is a name such as h200 or "NVIDIA H200", a compute capability such as 9.0, 90 or sm_90, or a file
    that ``cudnn-ct device --export`` wrote. Of the GPUs with one compute capability the first is meant.
    """
    archs, wanted = capabilities(), text.strip().lower()
    if name := _names().get(_MAKER.sub("", wanted)):
        return Gpu(archs[name], name)
    if match := _CAPABILITY.fullmatch(wanted):
        arch = int(match[1]) * 10 + int(match[2])
        return Gpu(arch, next((name for name, have in archs.items() if have == arch), ""))
    if os.path.exists(text):
        return Gpu(read_description(text)["deviceVer"] // 10, file=text)
    raise ValueError(f"unknown GPU: got {text!r}, {_choices()}{_meant(wanted)}")


def described(texts: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the names and files of described GPUs, of which one text may list several.

    Raises ValueError for an unknown GPU, and for a compute capability that no shipped description has.
    """
    words: list[str] = []
    for text in texts:
        words += [os.fspath(text)] if os.path.exists(text) else os.fspath(text).split(",")
    return list(dict.fromkeys(_described(word) for word in words))


def one_described(text: str | os.PathLike[str]) -> str:
    """Return the name or the file of one described GPU; raise ValueError as `described` does."""
    first, *others = described([text])
    if others:
        raise ValueError(f"one GPU is needed: got {os.fspath(text)!r}")
    return first


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the description of a device; raise ValueError with the path if the file is not one."""
    try:
        description = json.loads(_files.contents(path, MAX_BYTES))
    except OSError as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is not a description of a device: {error}") from None
    if not isinstance(description, dict) or not isinstance(description.get("deviceVer"), int):
        raise ValueError(f"{os.fspath(path)} is not a description of a device: it has no deviceVer")
    return description


@lru_cache(maxsize=None)
def table() -> dict[str, Any]:
    """Return the tables of ``gpus.json``, which `graph.gpus` describes."""
    tables: dict[str, Any] = json.loads(_files.resource("cudnn_doctor/read/gpus.json"))
    return tables


def capabilities() -> dict[str, int]:
    """Return ten times the compute capability of each GPU with a shipped description, recorded ones first."""
    return {name: row["deviceVer"] // 10 for name, row in _rows().items()}


def _described(word: str) -> str:
    found = parse(word)
    if not (found.name or found.file):
        text = f"no GPU of compute capability {found.arch / 10:.1f} is described"
        raise ValueError(f"{text}: got {word!r}, {_choices()}")
    return found.name or found.file


def _rows() -> dict[str, Any]:
    recorded = {name: row["values"] for name, row in table()["recorded"].items()}
    return {**recorded, **table()["derived"]}


def _names() -> dict[str, str]:
    """Return the name of a description for its own name and for that of its device, both without a maker."""
    devices = {_MAKER.sub("", row["deviceName"].lower()): name for name, row in _rows().items()}
    return {**devices, **{name: name for name in capabilities()}}


def _choices() -> str:
    names = ", ".join(capabilities())
    return (
        f"expected one of {names}, a compute capability such as 9.0, or a file of `cudnn-ct device --export`"
    )


def _meant(word: str) -> str:
    from difflib import get_close_matches  # only for a mistake

    close = get_close_matches(_MAKER.sub("", word), list(capabilities()), 1)
    return f"; did you mean {close[0]}?" if close else ""
