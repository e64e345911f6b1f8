"""The ELF reader, on small libraries and on damaged ones. No NVIDIA software."""

from __future__ import annotations

import ctypes
import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_doctor.read import elf as _elf
from tests.elf_files import make_elf

NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=12)
SOUND = make_elf("libx.so.1", ["libc.so.6"], {"one": 1, "two": 2, "three": 0x00091B00})


def written(folder: Path, data: bytes, name: str = "libx.so.1") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def kind_of(path: Path, words: str | None = None) -> str:
    with pytest.raises(_elf.ElfError, match=words) as caught:
        _elf.check(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)
    return caught.value.kind


def test_read_returns_names_and_constants_as_the_linker_does(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND)
    library = _elf.check(path)
    assert (library.soname, library.needed) == ("libx.so.1", ("libc.so.6",))
    assert library.machine == _elf.machine_here()
    linked = ctypes.c_uint.in_dll(ctypes.CDLL(str(path)), "three").value
    assert library.constant("three") == linked == 0x00091B00
    assert library.constant("four") is None
    # The library that is loaded must stay as it is: its pages are those of the file.
    assert _elf.read(written(tmp_path, make_elf(), "liby.so.1")).soname is None


@given(st.dictionaries(NAMES, st.integers(0, 2**32 - 1), max_size=20), NAMES)
def test_constant_finds_every_exported_symbol(tmp_path: Path, constants: dict[str, int], other: str) -> None:
    library = _elf.read(written(tmp_path, make_elf(constants=constants)))
    assert {name: library.constant(name) for name in constants} == constants
    assert library.constant(other) == constants.get(other)


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", "empty", "is empty"),
        (b"\n<!DOCTYPE html><html>Not found", "text", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "text", "git lfs pull"),
        (b"/* GNU ld script */ INPUT(libx.so.1)", "text", "linker script"),
        (b"MZ" + bytes(100), "foreign", "starts with b'MZ"),
        (b"\x7fELF\x02", "truncated", "expected 64 from its header"),
        (SOUND[:4] + b"\x01" + SOUND[5:], "class", "32-bit"),
        (SOUND[:5] + b"\x02" + SOUND[6:], "class", "big-endian"),
        (SOUND[:54] + b"\x20\x00" + SOUND[56:], "malformed", "of 32 bytes"),
        (make_elf("libx.so.1", machine=243), "machine", "is a library for RISC-V"),
        (make_elf("libx.so.1", machine=9999), "machine", "is a library for machine 9999"),
    ],
)
def test_check_raises_the_kind_of_the_defect(tmp_path: Path, data: bytes, kind: str, words: str) -> None:
    assert kind_of(written(tmp_path, data), words) == kind


def test_check_raises_when_the_path_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link.so").symlink_to("gone.so")
    assert kind_of(tmp_path / "nothing.so") == "missing"
    assert kind_of(tmp_path / "link.so", r"a link to gone\.so, which does not exist") == "missing"
    assert [kind_of(path) for path in (tmp_path, tmp_path / "pipe")] == ["foreign"] * 2
    assert kind_of(tmp_path / "loop") == "malformed"


def test_check_raises_on_every_truncation(tmp_path: Path) -> None:
    for length in range(1, len(SOUND)):
        kind = kind_of(written(tmp_path, SOUND[:length]))
        assert kind == ("foreign" if length < 4 else "truncated"), length


def test_symbols_are_read_from_one_table_of_names_if_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.so").write_bytes(make_elf("x.so", constants={"one": 1, "two": 2, "": 3}))
    elf = _elf.read(tmp_path / "x.so")
    read: list[int] = []
    single = _elf._Strings.__getitem__
    monkeypatch.setattr(_elf._Strings, "__getitem__", lambda self, at: read.append(at) or single(self, at))
    exports = elf.symbols.exports
    assert set(exports) == {"one", "two", ""}
    assert len(read) == 1  # the empty name
    monkeypatch.setattr(_elf, "_MOST_NAMES", 1)  # a hostile table has millions
    assert _elf.read(tmp_path / "x.so").symbols.exports == exports
    assert len(read) > 3


def test_check_reads_little_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SOUND)
    os.truncate(path, 1 << 30)  # sparse
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read.append(size) or pread(file, size, at))
    assert _elf.check(path).constant("two") == 2
    assert sum(read) < 64 * 1024


def test_check_raises_when_the_file_is_truncated_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SOUND)
    monkeypatch.setattr(os, "pread", lambda file, size, at: b"")
    assert kind_of(path) == "truncated"
