"""Readers of the doctor: ELF tables, device code, RECORD, headers, metadata, versions; sound and damaged."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cudnn_doctor as doctor
from cudnn_doctor import binaries, libraryset, main, records, report, sandbox
from cudnn_doctor.checks import coverage
from cudnn_doctor.finding import Severity
from cudnn_doctor.read import elf as _elf
from cudnn_doctor.read import files as _files
from cudnn_doctor.read.libraries import SUBLIBRARIES, file_name
from cudnn_doctor.read.versions import meets
from tests.doctor_sites import read
from tests.elf_files import make_cudnn, make_elf

STUB = sandbox.make(["cuInit"], 62)


def written(folder: Path, data: bytes, name: str = "libcudnn_graph.so.9") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def container(*entries: tuple[int, int, int], magic: int = binaries.MAGIC) -> bytes:
    """Return device code with entries of (kind, language, architecture); zeroed for a negative one."""
    pieces = b"".join(
        struct.pack("<HHIQQHHI", kind, 0, 64, 8, 0, 0, language, abs(arch)).ljust(64, b"\0")
        + (b"code" if arch > 0 else bytes(4))
        + bytes(4)
        for kind, language, arch in entries
    )
    return struct.pack("<IHHQ", magic, 1, 16, len(pieces)) + pieces


def with_section(name: bytes, data: bytes) -> bytes:
    """Return a library with one section and the table of names."""
    constants = {"cudnn_graph_version": 0x091B00, "cudnnThing": 1}
    file = bytearray(make_elf("libcudnn_graph.so.9", ["libc.so.6"], constants))
    at = len(file) + -len(file) % 8
    file += bytes(at - len(file)) + data
    names_at = len(file)
    file += b"\0" + name + b"\0"
    table = len(file) + -len(file) % 8
    file += bytes(table - len(file))
    file += struct.pack("<I20xQQ24x", 1, at, len(data)) + struct.pack(
        "<I20xQQ24x", 0, names_at, len(name) + 2
    )
    struct.pack_into("<Q", file, 40, table)
    struct.pack_into("<HHH", file, 58, 64, 2, 1)
    return bytes(file)


# --- symbols -----------------------------------------------------------------------------------------------


SOUND = with_section(b".nv_fatbin", container((2, 7, 80), (1, 8, 90), (2, 8, 100)))
damage = st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=8)


@given(damage)
@example([(SOUND.index(struct.pack("<IIII", 1, 1, 1, 0)), 0)])  # a hash table without buckets
@example([(SOUND.index(struct.pack("<I", binaries.MAGIC)) + 8, 255)])  # a container of another length
def test_readers_raise_only_elf_errors_when_the_file_is_damaged(
    tmp_path: Path, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(SOUND)
    for at, byte in damage:
        data[at] = byte
    path = written(tmp_path, bytes(data))
    with contextlib.suppress(_elf.ElfError):
        elf = _elf.read(path)
        for address, size in elf.symbols.exports.values():
            elf.content(address, size)
    library = libraryset.read_library(str(path), part="graph")
    assert (library.error is None) == (library.elf is not _elf.UNREAD)


def test_a_string_table_of_zeros_is_damage(tmp_path: Path) -> None:
    names = (b"libcudnn_ops.so.9", b"libcudnn_graph.so.9", b"libz.so.1")
    data = make_elf("libcudnn_ops.so.9", [name.decode() for name in names[1:]])
    for name in names:
        data = data.replace(name, bytes(len(name)))
    path = written(tmp_path, data, "libcudnn_ops.so.9")
    with pytest.raises(_elf.ElfError, match=r"libcudnn_ops\.so\.9 has empty names in its string table"):
        _elf.read(path)


@given(st.binary(max_size=300) | st.integers(0, len(STUB)).map(lambda size: STUB[:size]))
@example(STUB)
def test_libraryset_reports_every_file_that_is_not_a_library(tmp_path: Path, data: bytes) -> None:
    written(tmp_path, data, "libcudnn.so.9")
    assert (read(tmp_path).libraries[""].error is None) == (data == STUB)


VERSIONS = st.one_of(st.just(0x091B00), st.integers(0, 2**32 - 1), st.sampled_from([0x080907, 0x091400]))
LIBRARIES = ["", *SUBLIBRARIES]
PARTS = st.dictionaries(st.sampled_from(LIBRARIES), VERSIONS, min_size=4)


@given(PARTS, st.booleans(), st.text(max_size=50))
def test_diagnose_examines_any_mixture_of_libraries(
    tmp_path: Path, parts: dict[str, int], every: bool, record: str
) -> None:
    """Sound libraries of different versions, for which checks depend on each other's results."""
    shutil.rmtree(tmp_path / "site", ignore_errors=True)
    lib = tmp_path / "site/nvidia/cudnn/lib"
    lib.mkdir(parents=True)
    for name in LIBRARIES if every else parts:
        file, constant = file_name(name), SUBLIBRARIES[name].constant if name else ""
        version = parts.get(name, 0x091B00)
        written(lib, make_elf(file, constants={constant: version, "cudnnThing": 1} if constant else {}), file)
    (tmp_path / "site/nvidia_cudnn_cu12-9.27.0.42.dist-info").mkdir()
    written(tmp_path / "site/nvidia_cudnn_cu12-9.27.0.42.dist-info", record.encode(), "RECORD")
    found = doctor.diagnose(tmp_path / "site", doctor.Requirements(archs=(90,)), run=False)
    assert found.sets
    assert found.exit_code() == 1  # no library has code for a GPU
    json.loads(report.json_text(found, Severity.ERROR))
    assert report.text(found)
    assert all(form(found, Severity.ERROR) for form in report.FORMATS.values())


# --- device code -------------------------------------------------------------------------------------------


def test_fatbin_reads_the_device_code(tmp_path: Path) -> None:
    data = container((2, 7, 80), (2, 8, 100)) + container((1, 9, 121))
    code = binaries.read(_elf.read(written(tmp_path, with_section(b".nv_fatbin", data))))
    assert code == binaries.DeviceCode(frozenset({80, 100}), frozenset({121}), 13)


@pytest.mark.parametrize("section", [b".nv_fatbin", b".other"])
@pytest.mark.parametrize("data", [b"", bytes(64), container((2, 7, 80), magic=1), container()])
def test_fatbin_returns_none_without_device_code(tmp_path: Path, section: bytes, data: bytes) -> None:
    assert binaries.read(_elf.read(written(tmp_path, with_section(section, data)))) is None


def test_libraryset_reports_a_library_whose_section_table_is_cut(tmp_path: Path) -> None:
    whole, cut = (written(tmp_path, data, f"{len(data)}.so") for data in (SOUND, SOUND[:-8]))
    assert libraryset.read_library(str(whole)).error is None
    error = libraryset.read_library(str(cut)).error  # although the linker opens it
    assert error is not None
    assert (error.kind, _elf.read(cut).segments) == ("truncated", _elf.read(whole).segments)


OTHER = container((2, 8, 100))


@pytest.mark.parametrize(
    ("data", "runs", "zeroed", "blank"),
    [
        (container((2, 8, 80), (2, 8, -90), (2, 8, 100)), {80, 86, 89, 100, 103}, {90}, False),
        (container((2, 8, 80), (2, 8, -86), (2, 8, 90)), {80, 90}, {86}, False),  # 8.6 takes its own code
        (container((2, 8, 90)) + container((2, 8, -90)), set(), {90}, False),  # some of its kernels
        (container((2, 8, 90), (1, 8, -90)), {90}, set(), False),  # its PTX
        (container((2, 8, 90)) + bytes(8192) + OTHER, set(), set(), True),  # a container
        (bytes(8192), set(), set(), True),  # everything
        (container((2, 8, 90), (2, 8, 75))[:88] + bytes(72) + OTHER, set(), set(), True),  # an entry
        (container((2, 8, 90)) + bytes(5 << 20) + OTHER, set(), set(), True),
        (container((2, 8, 90)) + bytes(24) + OTHER, {90, 100, 103}, set(), False),  # padding
    ],
)
def test_fatbin_and_requirements_see_code_that_was_zeroed(
    tmp_path: Path, data: bytes, runs: set[int], zeroed: set[int], blank: bool
) -> None:
    make_cudnn(tmp_path, "9.27.0")
    name = "libcudnn_ops.so.9"
    library = with_section(b".nv_fatbin", data).replace(b"libcudnn_graph.so.9", b"libcudnn_ops.so.9\0\0")
    written(tmp_path, library, name)
    code = read(tmp_path).libraries["ops"].code
    assert code is not None
    assert (code.zeroed, code.blank) == (zeroed, blank)
    for arch in (80, 86, 89, 90, 100, 103):
        assert code.runs_on(arch) == ((arch in runs) or any(have <= arch for have in code.ptx))
        found = doctor.diagnose(tmp_path, doctor.Requirements(archs=(arch,)), run=False)
        codes = {each.code for each in found.findings}
        assert ("no-gpu-code" in codes) == (not code.runs_on(arch))
        assert ("zeroed-code" in codes) == bool(zeroed or blank)
        lacking = [each.fix for each in found.findings if each.code == "no-gpu-code"]
        assert not (lacking and (arch in zeroed or blank)) or lacking == [
            "install cuDNN again, and no other cuDNN over it"
        ]


def test_coverage_intersects_all_libraries_and_adds_later_minors(tmp_path: Path) -> None:
    for part, archs in (("ops", (75, 80, 90)), ("cnn", (60, 75, 80, 90))):
        code = container(*((2, 8, arch) for arch in archs), (1, 8, 90))
        written(tmp_path, with_section(b".nv_fatbin", code), f"libcudnn_{part}.so.9")
    found = read(tmp_path)
    sass, ptx = coverage(found)
    assert {75, 80, 86, 89, 90} <= sass
    assert not {60, 70, 100} & sass
    assert ptx == {90}


# --- folders and files -------------------------------------------------------------------------------------


def test_libraryset_follows_the_links_of_debian(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.10.2", without=["engines_tensor_ir", "ext"])
    for file in list(tmp_path.iterdir()):
        file.rename(tmp_path / f"{file.name}.10.2")
        (tmp_path / file.name).symlink_to(f"{file.name}.10.2")
    found = read(tmp_path)
    assert found.extra == ()
    assert found.libraries[""].real.endswith("libcudnn.so.9.10.2")
    assert found.shim == str(tmp_path / "libcudnn.so.9")  # next to the links of the other libraries


def test_cudnn_files_parses_names(tmp_path: Path) -> None:
    parsed = {"libcudnn.so": ("", ""), "libcudnn.so.9": ("", "9"), "libcudnn_ops.so.8.9.7": ("ops", "8.9.7")}
    for name in (*parsed, "libcudnn.so.9.old", "libcudnn_static.a", "xlibcudnn.so.9"):
        (tmp_path / name).touch()
    found = {Path(each.path).name: (each.part, each.version) for each in _files.cudnn_files(str(tmp_path))}
    assert found == parsed


def test_contents_rejects_a_file_over_the_limit(tmp_path: Path) -> None:
    """Such as a RECORD that would fill the memory."""
    path, limit = written(tmp_path, b"", "RECORD"), 8 << 20
    os.truncate(path, limit)  # sparse
    assert len(_files.contents(path)) == limit
    os.truncate(path, limit + 1)
    with pytest.raises(OSError, match="has 8,388,609 bytes, more than the 8,388,608 that are read"):
        _files.text_of(path)


def test_real_follows_links_below_the_root_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "a").symlink_to("/usr/x")
    (tmp_path / "up").symlink_to("../../../../usr/x")
    (tmp_path / "loop").symlink_to("loop")
    root = str(tmp_path.resolve())
    assert _files.real(f"{root}/a", root) == f"{root}/usr/x"
    assert _files.real(f"{root}/up", root) == f"{root}/usr/x"
    assert _files.real(f"{root}/loop", root) == f"{root}/loop"
    assert _files.real("/etc/../etc", root) == str(Path("/etc").resolve())


# --- RECORD, header, METADATA ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a\n", "a,b,c,d\n", "a,b,-1\n", ",b,1\n", 'a,"b,1\n', "a,b,1e9\n"])
def test_parse_record_raises_when_the_text_is_not_a_record(text: str) -> None:
    record = records.parse_record('"a, b.so",sha256=x,12\nc/RECORD,,\n')
    assert record == {"a, b.so": ("sha256=x", 12), "c/RECORD": ("", -1)}
    with pytest.raises(records.RecordError):
        records.parse_record(text)


def test_meets_compares_a_version_with_a_specifier() -> None:
    for version, met, not_met in (
        ("9.10.2.21", "==9.10.2.21 ==9.10.*", "==9.10.2.22 !=9.10.*"),
        ("9.9", "~=9.1", ""),
        ("10.0", "", "~=9.1"),
        ("9.1", ">=9.1,<10 >9.0 whatever", "<9.1"),
        ("9.1.0", "==9.1", ""),
    ):
        assert all(meets(version, specifier) for specifier in ["", *met.split()])
        assert not any(meets(version, specifier) for specifier in not_met.split())


# --- arguments --------------------------------------------------------------------------------------


def test_capabilities_reads_compute_capabilities() -> None:
    texts = {"75,90,120": (75, 90, 120), "7.5": (75,), "sm_90a, 12.0, 90": (90, 120), "100f": (100,)}
    assert {text: main.capabilities(text) for text in texts} == texts
    for text in ("", "9", "1234", "hopper", "90,", "-90", "٩٠"):
        with pytest.raises(argparse.ArgumentTypeError, match="unknown GPU: got"):
            main.capabilities(text)


def test_diagnose_reports_damage_when_the_dynamic_section_is_lost(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0")
    path = tmp_path / "libcudnn_graph.so.9"
    data = path.read_bytes()
    table = next(segment for segment in _elf.read(path).segments if segment.kind == _elf.PT_DYNAMIC)
    end = table.offset + table.size
    for broken in (
        data[: table.offset] + bytes(table.size) + data[end:],  # an interrupted download of parts
        data[: table.offset] + b"\r" * 8 + data[table.offset :],  # a conversion of line ends
    ):
        path.unlink()
        path.write_bytes(broken)
        found = doctor.diagnose(tmp_path, run=False)
        errors = [each.code for each in found.findings if each.severity == Severity.ERROR]
        assert errors == ["damaged-library"]


def test_diagnose_does_not_name_gpus_when_a_whole_part_of_the_code_is_zeros(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0")
    code = container((2, 8, 90)) + bytes(8192) + OTHER
    written(tmp_path, with_section(b".nv_fatbin", code), "libcudnn_graph.so.9")
    found = doctor.diagnose(tmp_path, run=False)
    (zeroed,) = (each for each in found.findings if each.code == "zeroed-code")
    assert zeroed.message == "code of libcudnn_graph.so.9 is overwritten with zeros"
    assert "interrupted copy" in zeroed.cause
