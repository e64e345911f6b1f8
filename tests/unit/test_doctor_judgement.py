"""What the doctor concludes: from the runs of its children, from demands, from what is installed beside."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct import _elf, _files, doctor
from cudnn_ct._config import config
from cudnn_ct._find import find_cudnn
from cudnn_ct._installation import require
from cudnn_ct.doctor import (
    checks,
    dependents,
    driver,
    libraryset,
    load_check,
    locate,
    record_check,
    sandbox,
    search,
)
from cudnn_ct.doctor.finding import Finding, codes, finding
from cudnn_ct.doctor.requirements import Demands
from cudnn_ct.doctor.sandbox import Report
from cudnn_ct.errors import CudnnError
from tests.elf_files import make_cudnn, make_elf, make_header


@pytest.fixture
def found(tmp_path: Path) -> libraryset.LibrarySet:
    make_cudnn(tmp_path / "cudnn/lib", "9.27.0")
    result = libraryset.read(str(tmp_path / "cudnn/lib"))
    assert result is not None
    return result


def report(*steps: dict[str, Any], ended: str = "done", **rest: Any) -> Report:
    return Report(steps, ended, 0.1, **rest)


def said(findings: Any) -> dict[str, str]:
    return {each.code: each.message for each in findings}


# --- cuDNN in a child --------------------------------------------------------------------------------------


def good(found: libraryset.LibrarySet, **changes: Any) -> list[dict[str, Any]]:
    maps = [library.real for library in found.libraries.values()]
    steps = {
        "libcuda": {"how": "stand-in"},
        "load": {"error": ""},
        "version": {"value": 92700},
        "check": {"name": "cudnnOpsVersionCheck", "status": 0, "text": ""},
        "maps": {"files": maps},
        "finalize": {"status": 0, "text": ""},
    }
    for name, values in changes.items():
        steps[name] = {**steps[name], **values}
    return [{"step": name, **values} for name, values in steps.items()]


def test_a_good_run_says_nothing(found: libraryset.LibrarySet) -> None:
    assert said(load_check.judge(found, report(*good(found)), report(*good(found)))) == {}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"load": {"error": "wrong ELF class"}}, "load-failed", "wrong ELF class"),
        ({"version": {"value": 91002}}, "runtime-version", "9.10.2"),
        (
            {"check": {"status": 3009}},
            "check-failed",
            "3009 (CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE)",
        ),
        ({"check": {"status": 1002}}, "mixed-versions", "cudnnOpsVersionCheck"),
        ({"finalize": {"status": 1008}}, "finalize-failed", "SUBLIBRARY_LOADING_FAILED"),
        ({"finalize": {"status": 7777}}, "finalize-failed", "7777"),
        ({"maps": {"files": ["/else/libcudnn_ops.so.9"]}}, "mixed-at-run-time", "/else/libcudnn_ops.so.9"),
        ({"maps": {"files": []}}, "jit-only", "libcudnn_heuristic.so.9"),
    ],
)
def test_what_a_run_shows(
    found: libraryset.LibrarySet, changes: dict[str, dict[str, Any]], code: str, words: str
) -> None:
    findings = said(load_check.judge(found, report(*good(found, **changes))))
    assert words in findings[code]


def test_components_are_named_where_cudnn_names_them(found: libraryset.LibrarySet) -> None:
    log = (
        "w! Reason: component cudnn_graph version 9.28.0 loaded component cudnn_heuristic version 9.27.0. All"
    )
    findings = said(load_check.judge(found, report(*good(found), log=log)))
    assert findings == {"mixed-versions": "cudnn_graph 9.28.0 has loaded cudnn_heuristic 9.27.0"}


def test_without_any_libcuda_a_status_that_comes_of_it_is_no_finding(found: libraryset.LibrarySet) -> None:
    steps = good(found, libcuda={"how": "none: noexec"}, finalize={"status": 1008})
    assert said(load_check.judge(found, report(*steps), report(*steps))) == {}


def test_only_the_full_configuration_fails(found: libraryset.LibrarySet) -> None:
    full = report(*good(found, finalize={"status": 1008}))
    assert (
        "CUDNN_LIB_CONFIG=FULL"
        in said(load_check.judge(found, report(*good(found)), full))["finalize-failed"]
    )


def test_the_shim_tells_its_version_by_what_it_asks_for(found: libraryset.LibrarySet) -> None:
    asked = {found.libraries[""].real: "9.10.2"}
    assert "9.10.2" in said(load_check.judge(found, report(*good(found), asked_by=asked)))["foreign-shim"]


def test_refusals_of_the_linker_go_with_other_findings(found: libraryset.LibrarySet) -> None:
    refusals = (("/x/libcudnn_cnn.so.9", "undefined symbol: foo"),)
    assert said(load_check.judge(found, report(*good(found), refusals=refusals))) == {}
    bad = report(*good(found, check={"status": 3009}), refusals=refusals)
    assert "undefined symbol: foo" in said(load_check.judge(found, bad))["linker-error"]


@pytest.mark.parametrize("folder", ["/x", "/x y/\u00fc z", "/x: y"])
def test_the_linkers_log_is_read_whatever_the_name_of_the_folder(folder: str) -> None:
    shim, cnn = f"{folder}/libcudnn.so.9", f"{folder}/libcudnn_cnn.so.9"
    log = (
        f"     42:\tfile=libcudnn_graph.so.9.28.0 [0];  dynamically loaded by {shim} [0]\n"
        f"     42:\t42:\t{cnn}: error: symbol lookup error: undefined symbol: foo (fatal)\n"
        f"     42:\topening file={shim} [0]; direct_opencount=1\n"
    )
    assert sandbox._REQUEST.findall(log) == [("9.28.0", shim)]
    assert sandbox._REFUSAL.findall(log) == [(cnn, "symbol lookup error: undefined symbol: foo")]


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ("SIGSEGV", "probe-crashed"),
        ("exit 1", "probe-crashed"),
        ("hung", "probe-hung"),
        ("refused", "not-probed"),
    ],
)
def test_how_a_run_ends(found: libraryset.LibrarySet, ended: str, code: str) -> None:
    findings = said(
        load_check.judge(found, report({"step": "begin", "what": "cudnnGetVersion"}, ended=ended))
    )
    assert code in findings


# --- the driver --------------------------------------------------------------------------------------------


def gpu(**changes: Any) -> dict[str, Any]:
    row = {"index": 0, "name": "NVIDIA X", "arch": 90, "status": 0, "free": 8 << 30, "total": 16 << 30}
    return {"step": "device", **row, **changes}


def answers(version: int = 12080, init: int = 0, path: str = "/usr/lib/libcuda.so.1") -> list[dict[str, Any]]:
    return [
        {"step": "driver", "error": "", "path": path},
        {"step": "driver_version", "status": 0, "value": version},
        {"step": "init", "status": init},
    ]


@pytest.mark.parametrize(
    ("made", "code", "severity"),
    [
        (
            report({"step": "driver", "error": "cannot open shared object file: No such file"}),
            "no-driver",
            "note",
        ),
        (report({"step": "driver", "error": "file too short"}), "driver-broken", "error"),
        (report(*answers(init=34)), "driver-stub", "error"),
        (report(*answers(path="/usr/local/cuda/lib64/stubs/libcuda.so")), "driver-stub", "error"),
        (report(*answers(path="/usr/local/cuda/compat/libcuda.so.1"), gpu()), "driver-compat", "note"),
        (report(*answers(init=804)), "driver-broken", "error"),
        (report(*answers(init=100)), "no-gpu", "note"),
        (report(*answers()), "no-gpu", "note"),
        (report(*answers(), gpu(free=1 << 20)), "low-memory", "warning"),
        (report(*answers(), gpu(status=2)), "driver-broken", "error"),
        (
            report(*answers(), gpu(), {"step": "create", "status": 1001, "text": "?"}),
            "create-failed",
            "error",
        ),
        (report(*answers(), gpu(), {"step": "load", "error": "no"}), "create-failed", "error"),
        (report(*answers(), ended="SIGSEGV"), "driver-broken", "error"),
        (
            report(*answers(), gpu(), {"step": "begin", "what": "cudnnCreate"}, ended="SIGABRT"),
            "create-failed",
            "error",
        ),
        (report(ended="SIGBUS"), "driver-broken", "error"),
        (report(ended="hung"), "probe-hung", "error"),
        (report(ended="refused"), "not-probed", "warning"),
    ],
)
def test_what_the_driver_shows(made: Report, code: str, severity: str) -> None:
    findings = {each.code: each.severity.word for each in driver.judge(None, made, Demands())}
    assert findings[code] == severity


def test_a_good_gpu_says_nothing() -> None:
    made = report(*answers(), gpu(), {"step": "create", "status": 0, "text": ""})
    assert list(driver.judge(None, made, Demands())) == []
    assert (driver.archs(made), driver.count(made)) == ((90,), 1)


def test_what_is_required_is_an_error() -> None:
    none = report({"step": "driver", "error": "cannot open shared object file"})
    for asked in (Demands(driver=True), Demands(gpu=True)):
        assert [each.severity.word for each in driver.judge(None, none, asked)] == ["error"]
    (no_gpu,) = driver.judge(None, report(*answers()), Demands(gpu=True))
    assert no_gpu.severity == doctor.Severity.ERROR
    (still_note,) = driver.judge(None, report(*answers()), Demands(driver=True))
    assert still_note.severity == doctor.Severity.NOTE


def test_an_old_driver(found: libraryset.LibrarySet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraryset.LibrarySet, "cuda", 13)
    findings = list(driver.judge(found, report(*answers(12080), gpu()), Demands()))
    (old,) = (each for each in findings if each.code == "driver-too-old")
    assert "580.65.06" in old.fix
    assert "12.8" in old.message


# --- what lies beside --------------------------------------------------------------------------------------


def test_known_combinations(found: libraryset.LibrarySet, tmp_path: Path) -> None:
    assert list(dependents.known_bad(found)) == []
    assert len(list(dependents.known_bad(found, "12.9.1", (100,)))) == 1
    assert list(dependents.known_bad(found, "13.2.0", (100,))) == []
    make_cudnn(tmp_path / "old", "9.10.0")
    old = libraryset.read(str(tmp_path / "old"))
    assert old is not None
    assert len(list(dependents.known_bad(old))) == 1
    assert len(list(dependents.known_bad(old, "12.9.1", (), 2))) == 2


@pytest.mark.parametrize(
    ("package", "good"),
    [
        ("onnxruntime_gpu-1.18.0", False),
        ("onnxruntime_gpu-1.22.0", True),
        ("tensorflow-2.17.0", False),
        ("tensorflow-2.19.0", True),
        ("ctranslate2-4.4.0", False),
        ("ctranslate2-4.6.0", True),
        ("nvidia_cudnn_frontend-1.18.0", True),  # takes any from 8.5 on
        ("numpy-2.0.0", True),
    ],
)
def test_packages_that_do_not_declare_their_cudnn(tmp_path: Path, package: str, good: bool) -> None:
    lib = make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.27.0").parent
    (tmp_path / f"{package}.dist-info").mkdir()
    (tmp_path / f"{package}.dist-info/METADATA").write_text("Name: x\n")
    found = libraryset.read(str(lib))
    assert found is not None
    assert (list(dependents.check(found, [])) == []) is good


def test_files_that_are_gone_are_told_apart_from_others(tmp_path: Path) -> None:
    """Whoever leaves the headers out of an image has a cuDNN that works."""
    lib = make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.27.0").parent
    (tmp_path / "x-1.dist-info").mkdir()
    found = libraryset.read(str(lib))
    assert found is not None
    headers = {f"nvidia/cudnn/include/{number}.h": ("", 1) for number in range(9)}
    libraries = {f"nvidia/cudnn/lib/{library.file}": ("", 1) for library in found.libraries.values()}
    for record, given in (
        (headers, ("missing-file", "9 files of x 1 are gone, such as ")),
        (libraries, ("altered-file", f"{len(libraries)} files are not those that x 1 installed, such as ")),
    ):
        (told,) = record_check.check(found, [record_check.Distribution("x", "1", record)])
        assert (told.code, told.message.partition(str(tmp_path))[0]) == given
    both = record_check.Distribution("x", "1", {**headers, **libraries})
    assert {each.code for each in record_check.check(found, [both])} == {"missing-file", "altered-file"}


def test_what_torch_declares(tmp_path: Path) -> None:
    lib = make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.27.0").parent
    (tmp_path / "torch-2.9.0.dist-info").mkdir()
    metadata = "Name: torch\nRequires-Dist: nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'\n"
    (tmp_path / "torch-2.9.0.dist-info/METADATA").write_text(metadata)
    found = libraryset.read(str(lib))
    assert found is not None
    for version, codes_given in (("9.10.2.21", []), ("9.27.0.42", ["consumer-mismatch"])):
        owner = record_check.Distribution("nvidia-cudnn-cu12", version, {})
        findings = list(dependents.check(found, [owner]))
        assert [each.code for each in findings] == codes_given
        assert all("another version of torch" in each.fix for each in findings)
    assert list(dependents.check(found, [])) == []


def needing(found: libraryset.LibrarySet, **changes: Any) -> libraryset.LibrarySet:
    """The same libraries, of which libcudnn needs more."""
    shim = found.libraries[""]
    assert shim.dynamic is not None
    assert shim.elf is not None
    part = shim.elf if "needed" in changes else shim.dynamic
    name = "elf" if "needed" in changes else "dynamic"
    changed = replace(shim, **{name: replace(part, **changes)})
    return replace(found, libraries={**found.libraries, "": changed})


@pytest.mark.parametrize(
    ("have", "needs", "code"),
    [
        ("", {"GLIBC_2.27"}, "no-glibc"),
        ("glibc 2.17", {"GLIBC_2.2.5", "GLIBC_2.27", "GLIBCXX_3.4.22"}, "old-glibc"),
        ("glibc 2.9", {"GLIBC_2.17"}, "old-glibc"),
        ("glibc 2.27", {"GLIBC_2.27", "GLIBC_2.3.4", "GLIBC_PRIVATE"}, ""),
        ("glibc 2.27", set(), ""),
    ],
)
def test_the_c_library(
    found: libraryset.LibrarySet, monkeypatch: pytest.MonkeyPatch, have: str, needs: set[str], code: str
) -> None:
    monkeypatch.setattr(_elf, "glibc_version", lambda: have)
    given = {each.code for each in load_check.check_libc(needing(found, versions=frozenset(needs)))}
    assert given == ({code} if code else set())
    assert bool(load_check.why_not(found)) == (not have)
    image = replace(found, root="/image")  # whose C library is another one
    assert list(load_check.check_libc(image)) == []


def test_libraries_of_the_system(found: libraryset.LibrarySet, monkeypatch: pytest.MonkeyPatch) -> None:
    wants = needing(found, needed=("libz.so.1", "libc.so.6"))
    monkeypatch.setattr(search, "find_companion", lambda *_: "")
    missing = [each for each in search.check_companions(wants) if each.code == "missing-system-library"]
    assert [each.fix for each in missing] == ["install it: apt-get install zlib1g"]
    monkeypatch.setattr(search, "find_companion", lambda *_: "/lib/libz.so.1")
    assert "missing-system-library" not in said(search.check_companions(wants))


def test_a_folder_of_nvrtc_that_wheels_misspell(found: libraryset.LibrarySet) -> None:
    wants = needing(found, runpath=("$ORIGIN", "$ORIGIN/../../nvidia/nvrtc/lib", "$ORIGIN/../../other/lib"))
    dead = [each for each in search.check_companions(wants) if each.code == "dead-runpath"]
    assert [each.message.count("nvidia/nvrtc/lib") for each in dead] == [1]


def test_a_file_system_that_runs_nothing(
    found: libraryset.LibrarySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = found.folder.replace(" ", "\\040")
    for table, bad in (
        ("none / ext4 rw 0 0\n", False),
        (f"none / ext4 rw,noexec 0 0\nnone {where} tmpfs rw,nosuid 0 0\n", False),
        (f"none / ext4 rw 0 0\nnone {where} tmpfs rw,noexec 0 0\n", True),
        (f"none {where}x tmpfs rw,noexec 0 0\n", False),
        (f"none {where} tmpfs rw,noexec 0 0\nnone {where} tmpfs rw 0 0\n", False),  # the last one counts
        ("garbage\n", False),
    ):
        monkeypatch.setattr(_files, "text_of", lambda path, table=table: table)
        assert ("noexec-mount" in said(checks.check_access(found))) is bad


def test_headers_elsewhere_are_notes(found: libraryset.LibrarySet, tmp_path: Path) -> None:
    make_header(tmp_path / "home/include/cudnn_version.h", "9.1.0")
    home, path = str(tmp_path / "home"), f"/nowhere::{tmp_path}/home/include"
    places_told = [{"CUDNN_PATH": home}, *({name: path} for name in search.INCLUDES)]
    for environ in places_told:
        (other,) = search.check_headers(found, environ)
        assert (other.code, other.evidence["version"]) == ("other-header", "9.1.0")


def test_companions(found: libraryset.LibrarySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraryset.LibrarySet, "cuda", 99)
    missing = {each.evidence["library"] for each in search.check_companions(found, {})}
    assert missing == {"libcublasLt.so.99", "libnvrtc.so.99"}
    worst = {"libcublasLt.so.99": "error", "libnvrtc.so.99": "warning"}
    assert {
        each.evidence["library"]: each.severity.word for each in search.check_companions(found, {})
    } == worst
    image = replace(found, root=str(tmp_path))  # its environment may name the folder
    assert {each.severity.word for each in search.check_companions(image, {})} == {"warning"}
    (tmp_path / "libcublasLt.so.99").touch()
    (tmp_path / "libnvrtc.so.99").touch()
    assert list(search.check_companions(found, {"LD_LIBRARY_PATH": str(tmp_path)})) == []


def test_the_same_version_on_the_path_is_a_warning(tmp_path: Path) -> None:
    one, two = (make_cudnn(tmp_path / name, "9.27.0").parent for name in ("one", "two"))
    (shadow,) = competitors(one, f":{two}:{one}")
    assert (shadow.code, shadow.severity.word) == ("shadowed", "warning")


def test_what_comes_after_its_own_folder_on_the_path_shadows_nothing(tmp_path: Path) -> None:
    own = make_cudnn(tmp_path / "own", "9.27.0").parent
    other = make_cudnn(tmp_path / "other", "9.19.0").parent
    (tmp_path / "link").symlink_to(own)
    for path, codes_given in (
        (f"{own}:{other}", ["other-cudnn"]),
        (f"{tmp_path}/link:{other}", ["other-cudnn"]),
        (f"{other}:{own}", ["shadowed"]),
        (f"{other}", ["shadowed"]),
    ):
        assert [each.code for each in competitors(own, path)] == codes_given


def competitors(folder: Path, path: str) -> list[Finding]:
    """What is said of LD_LIBRARY_PATH, and not of the rest of this machine."""
    found = libraryset.read(str(folder))
    assert found is not None
    findings = search.check_competition(found, {"LD_LIBRARY_PATH": path})
    return [each for each in findings if each.code != "other-cudnn" or each.evidence["path"] in path]


def test_an_old_cudnn_on_the_path_does_not_count(found: libraryset.LibrarySet, tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.8").touch()
    given = {each.code for each in search.check_competition(found, {"LD_LIBRARY_PATH": str(tmp_path)})}
    assert "shadowed" not in given


def test_the_order_of_the_search(tmp_path: Path) -> None:
    for name in ("site/nvidia/cudnn/lib", "home/lib64", "explicit"):
        make_cudnn(tmp_path / name)
    environ = {"CUDNN_PATH": str(tmp_path / "home")}
    via = [place.via for place in locate.usual(environ, [str(tmp_path / "site")]).found]
    assert via[:2] == ["wheel", "CUDNN_PATH"]
    environ["CUDNN_CT_LIBRARY"] = str(tmp_path / "explicit/libcudnn.so.9")
    assert locate.usual(environ, []).found[0].folder == str((tmp_path / "explicit").resolve())


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a cuDNN, beside which are files of other kinds; another cuDNN is installed."""
    shim = make_cudnn(tmp_path / "set/lib", "9.27.0")
    make_cudnn(tmp_path / "site/nvidia/cudnn/lib", "9.27.0")
    (shim.parent / "notes.py").write_text("import this")
    (tmp_path / "else.so").symlink_to(shim)
    (tmp_path / "empty").mkdir()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/c.so").write_bytes(make_elf("libcudnn.so.9"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("set/lib/libcudnn_ops.so.9", "libcudnn_ops.so.9, which is libcudnn_ops.so.9, not libcudnn.so.9"),
        ("set/lib/libcudnn.so.9.99", "which does not exist"),
        ("set/lib/notes.py", "notes.py, which is not an ELF library"),
        ("no/libcudnn.so.9", "which does not exist"),
        ("empty", "where no cuDNN is seen"),
        ("alone/c.so", "where no cuDNN is seen"),
    ],
)
def test_a_setting_that_names_no_cudnn_is_a_finding_of_its_own(
    setting: Path, monkeypatch: pytest.MonkeyPatch, named: str, words: str
) -> None:
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(setting / named))
    found = doctor.diagnose(run=False)
    (told,) = found.findings
    assert (told.code, told.severity.word) == ("wrong-setting", "error")
    assert words in told.message
    assert told.fix == "unset or correct CUDNN_CT_LIBRARY"
    assert (found.sets, found.exit_code()) == ((), 1)
    monkeypatch.setattr(config, "library", str(setting / named))
    with pytest.raises(CudnnError):  # the loader is of the same mind
        require(find_cudnn())


@pytest.mark.parametrize("named", ["set", "set/lib", "set/lib/libcudnn.so.9", "else.so"])
def test_a_setting_is_followed_as_the_loader_does(
    setting: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(setting / named))
    found = doctor.diagnose(run=False)
    assert [each.folder for each in found.sets] == [str((setting / "set/lib").resolve())]
    assert "wrong-setting" not in {each.code for each in found.findings}
    monkeypatch.setattr(config, "library", str(setting / named))
    assert require(find_cudnn()).folder == (setting / "set/lib").resolve()


def test_where_another_cudnn_comes_first_to_install_again_is_no_advice(
    found: libraryset.LibrarySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(judged: libraryset.LibrarySet, _: float) -> tuple[list[Finding], Report]:
        made = report(*good(judged, finalize={"status": 1008}))
        return list(load_check.judge(judged, made)), made

    monkeypatch.setattr(load_check, "check", check)
    monkeypatch.setattr(load_check, "why_not", lambda _: "")
    for path in ("", str(make_cudnn(Path(found.folder, "../other"), "9.19.0").parent)):
        monkeypatch.setenv("LD_LIBRARY_PATH", path)
        findings = doctor.diagnose(found.folder).findings
        (failed,) = [each for each in findings if each.code == "finalize-failed"]
        assert (failed.fix == "see shadowed") == bool(path)


def test_a_large_folder_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}/deeper").mkdir(parents=True)
    monkeypatch.setattr(locate, "MAX_FOLDERS", 10)
    found = locate.named(str(tmp_path))
    assert [each.code for each in found.findings] == ["cut-short"]


def test_a_version_before_all_that_there_were(tmp_path: Path) -> None:
    """A damaged constant may say anything, also a version that has none of the libraries."""
    folder = make_cudnn(tmp_path / "lib", "8.0.0").parent
    found = libraryset.read(str(folder))
    assert found is not None
    assert found.version == (8, 0, 0)
    codes = {each.code for check in checks.CHECKS for each in check(found)}
    assert "stray-library" in codes


def test_reinstalling() -> None:
    one = record_check.Distribution("nvidia-cudnn-cu12", "9.27.0.42", {})
    two = record_check.Distribution("nvidia-cudnn-cu13", "9.20.0.48", {})
    assert record_check.reinstall([one], "nvidia-cudnn-cu12").endswith(
        "--no-deps nvidia-cudnn-cu12==9.27.0.42"
    )
    assert record_check.reinstall([two, one], "nvidia-cudnn-cu13").startswith(
        "python -m pip uninstall -y nvidia-cudnn-cu12 nvidia-cudnn-cu13 &&"
    )
    assert "pip" not in record_check.reinstall([], "")


def test_an_executable_of_another_kind_is_not_mistaken_for_a_part(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0")
    (tmp_path / "libcudnn_ops.so.9").write_bytes(make_elf("libcudnn_cnn.so.9"))
    assert "wrong-library" in {each.code for each in doctor.diagnose(tmp_path, run=False).findings}


# --- the table of codes ------------------------------------------------------------------------------------

SOURCES = sorted(Path(doctor.__file__).parent.glob("*.py"))


def test_every_code_is_given_somewhere_and_every_given_one_is_in_the_table() -> None:
    texts = {
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(codes()) <= texts


def test_a_code_that_is_not_in_the_table_cannot_be_given() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", "x")


def test_every_fix_is_filled_in() -> None:
    with pytest.raises(KeyError):
        finding("private-file", "x")
    assert finding("private-file", "x", fix={"path": "/a b"}).fix == "chmod a+rX '/a b'"
