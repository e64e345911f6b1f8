"""The doctor on real cuDNNs: no findings for sound ones, and the right cause for broken ones.

`CUDNN_CT_TEST_CUDNNS` names the library folders of other cuDNN 9, unpacked from their wheels; with them every
case runs on each, and parts of one are copied into another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import libraryset, load_check
from cudnn_doctor import sandbox as child
from cudnn_doctor.read import elf as _elf
from cudnn_doctor.read.find import CUDNN, CUDNN_STEPS, SearchContext, search
from cudnn_doctor.read.installation import inspect
from tests.doctor_cases import CASES, MIXES, Case, named, pairs, run
from tests.doctor_sites import PACKAGE, Site, Source, examine, read
from tests.elf_files import make_elf
from tests.nightly import some
from tests.pythons import find_python


def sources() -> list[Source]:
    wheel = search(CUDNN, [step for step in CUDNN_STEPS if step[0] == "wheel"], SearchContext())
    folders = [wheel.path.parent] if wheel.path else []
    folders += [Path(folder) for folder in os.environ.get("CUDNN_CT_TEST_CUDNNS", "").split(":") if folder]
    return [
        Source(folder.parents[2]) for folder in folders if list(folder.parents[2].glob("nvidia_cudnn_cu*"))
    ]


SOURCES = sources()
pytestmark = pytest.mark.skipif(not SOURCES, reason="no cuDNN wheel is installed")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for hard links, on the file system of the wheels; it is removed after the test."""
    try:
        os.link(SOURCES[0].libraries / "libcudnn.so.9", tmp_path / "probe")
    except OSError as error:
        pytest.skip(f"no hard links from the wheel to the temporary folder: {error}")
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def site(folder: Path) -> Site:
    """A sound copy of the installed cuDNN."""
    return Site(folder, SOURCES[0])


# --- the matrix --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_doctor_finds_nothing_in_a_sound_cudnn(folder: Path, source: Source) -> None:
    start = time.monotonic()
    answer = examine(Site(folder, source).target)
    assert (answer.codes(), answer.exit_code) == (set(), 0)
    assert answer.report["tiers"]["child"] == "done"
    assert answer.report["cudnn"][0]["sass"]
    assert time.monotonic() - start < 10  # under 2 s; a busy machine may take longer


@pytest.mark.parametrize("layout", ["objects", "repositories"])
def test_doctor_and_loader_accept_files_that_are_links(site: Site, layout: str) -> None:
    for number, file in enumerate([file for file in site.root.rglob("*.so*") if file.is_file()]):
        names = {"objects": f"{number}/{number:064x}", "repositories": file.relative_to(site.root)}
        target = site.root.parent / layout / names[layout]
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
        file.symlink_to(target)
    answer = examine(site.target)
    assert (answer.codes(), answer.exit_code, answer.report["tiers"]["child"]) == (set(), 0, "done")
    assert inspect(site.file("")).problems == ()
    code = "import sys, cudnn_ct as ct; ct.config.library = sys.argv[1]; print(ct.version())"
    assert in_python(code, site.lib) == str(site.source.set.number)


SNIPPET = re.compile(r"python3? (?:-m cudnn_ct doctor|cudnn-doctor\.pyz) (-[^\n>]+)")


def test_commands_of_the_ci_snippets_succeed(site: Site) -> None:
    page = Path(__file__).parents[2] / "docs/ci.md"
    if not page.exists():
        pytest.skip("docs/ is not next to these tests")
    if site.source.set.version < (9, 10):
        pytest.skip("the snippets require cuDNN 9.10")
    blocks = re.findall(r"```(?:yaml|dockerfile)\n(.*?)```", page.read_text(), re.S)
    flags = [words.split() for block in blocks for words in SNIPPET.findall(block)]
    assert len(flags) == len(blocks) == 3
    version, cuda = libraryset.write(site.source.set.version), str(site.source.set.cuda)
    for words in flags:
        own = [{"9.27": version, "12": cuda}.get(word, word) for word in words]
        command = [sys.executable, "-m", "cudnn_ct", "doctor", *own, str(site.target)]
        environ = {**os.environ, "PYTHONPATH": str(PACKAGE), "CI": "true"}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_doctor_in_one_file_loads_cudnn_with_other_pythons(site: Site, tmp_path: Path, version: str) -> None:
    python = find_python(version)
    tool = Path(__file__).parents[2] / "tools/doctor_pyz.py"
    if not python or not tool.exists():
        pytest.skip(f"Python {version} is not installed")
    build = "import sys; sys.path.insert(0, sys.argv[1]); import doctor_pyz, pathlib as p; "
    build += "doctor_pyz.build(p.Path(sys.argv[2]), p.Path(sys.argv[3]))"
    file = tmp_path / "cudnn-doctor.pyz"
    subprocess.run([sys.executable, "-c", build, tool.parent, file, PACKAGE], check=True)
    command = [python, "-W", "error", file, "--json", site.target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert (done.stderr, done.returncode, found["verdict"]) == ("", 0, "sound")
    assert found["tiers"]["child"] == "done"


ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_doctor_works_without_proc(site: Site) -> None:
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"']
    if subprocess.run([*hidden, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only root may mount a folder over /proc")
    answer = examine(site.target, command=hidden)
    assert (answer.codes(), answer.exit_code, answer.report["tiers"]["child"]) == (set(), 0, "done")


@pytest.mark.parametrize("environ", [{}, ASCII], ids=["this locale", "ASCII"])
def test_doctor_finds_nothing_in_a_folder_with_any_name(folder: Path, environ: dict[str, str]) -> None:
    site = Site(folder / "Ordner mit Leer \u00fcn\u00ef", SOURCES[0])
    answer = examine(site.target, environ=environ)
    assert (answer.codes(), answer.exit_code) == (set(), 0)
    with with_libraries(site.file("graph"), site.file("")) as process:
        answer = examine(None, ["--pid", str(process.pid)], environ)
        process.communicate("")
    assert (answer.codes(), answer.exit_code) == (set(), 0)


ROWS: list[tuple[Case, tuple[Source, ...]]] = [
    (case, (source,)) for source in SOURCES for case in CASES if case.where(source)
]
ROWS += [(case, pair) for pair in pairs(SOURCES) for case in MIXES if case.where(*pair)]


# Findings with which the loader rejects a cuDNN before it opens a library.
@cache
def python_needs_libz() -> bool:
    """Return whether this Python is linked with libz: it does not start with a broken one."""
    content = Path(sys.executable).resolve().read_bytes()
    return b"libz.so.1\0" in content


REJECTED = {"missing-library", "damaged-library", "foreign-machine", "mixed-versions", "broken-link"}


@pytest.mark.parametrize(
    ("case", "sources"), some(ROWS, 3), ids=["-".join(map(str, (*sources, case))) for case, sources in ROWS]
)
def test_doctor_names_the_cause(folder: Path, case: Case, sources: tuple[Source, ...]) -> None:
    if "libz" in case.name and python_needs_libz():
        pytest.skip("this Python is linked with libz")
    answer = run(case, folder, *sources)
    assert named(case, answer), (answer.exit_code, answer.report["findings"])
    if len(sources) == 1 and "unreadable-library" not in case.codes:  # modes do not stop root
        problems = inspect(folder / "site-packages/nvidia/cudnn/lib/libcudnn.so.9").problems
        own = not case.name.startswith("LD_LIBRARY_PATH")  # it does not read other libraries
        assert bool(problems) == (own and bool(case.codes & REJECTED)), problems


# --- the child process, without the checks of the files ---------------------------------


def loaded(site: Site) -> list[doctor.Finding]:
    return load_check.check(read(site.lib), 60)[0]


@pytest.mark.parametrize(
    ("part", "replaced", "expected", "words"),
    [
        ("graph", "", "probe-crashed", "SIGABRT in cudnnGetVersion: .*Invalid handle. Cannot load symbol"),
        ("heuristic", "", "jit-only finalize-failed", ""),
        ("engines_precompiled", "", "jit-only finalize-failed", ""),
        ("engines_runtime_compiled", "", "jit-only finalize-failed", ""),
        ("cnn", "_ZTVN5cudnn", "linker-error", "undefined symbol"),
        ("graph", "libz.so.1", "missing-system-library", "1.os.zbil was not found"),
    ],
)
def test_load_check_names_the_cause(site: Site, part: str, replaced: str, expected: str, words: str) -> None:
    data = site.file(part).read_bytes()
    site.file(part).unlink()
    if replaced:  # a string in it, by its reverse
        site.write(site.file(part), data.replace(replaced.encode(), replaced[::-1].encode()))
    findings = loaded(site)
    assert any(re.search(words, found.message) for found in findings if found.code in expected.split())
    assert "system" not in expected or not any("reinstall" in found.fix for found in findings)


@pytest.mark.parametrize("own", [True, False], ids=["own version", "another version"])
def test_cudnn_finds_a_part_by_its_own_version_alone(site: Site, own: bool) -> None:
    """The checks of the files and of the loader expect the same."""
    version = libraryset.write(site.source.set.version) if own else "9.99.9"
    site.file("ops").rename(site.lib / f"libcudnn_ops.so.{version}")
    assert bool(loaded(site)) is not own


def test_doctor_reports_a_hang_of_cudnn(site: Site, tmp_path: Path) -> None:
    python = tmp_path / "python"  # of the child processes; a short limit alone is a race on a busy machine
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    asked = ["--timeout", "0.001", "--require-gpu"]
    answer = examine(site.target, asked, prelude=f"sys.executable = {str(python)!r}")
    (told,) = [each for each in answer.report["findings"] if each["severity"] == "error"]
    assert told["code"] == "probe-hung"
    assert told["message"].startswith("cuDNN did not return from ")
    assert answer.report["tiers"]["driver"] == "a child process used all of the time"
    assert answer.exit_code == 1


def test_sandbox_kills_a_probe_that_hangs_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/pid; wait\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    start = time.monotonic()
    (report,) = child.run([({"mode": "cudnn", "shim": ""}, {})], 1)
    assert report.ended == "hung"
    assert time.monotonic() - start < 10
    while is_running((tmp_path / "pid").read_text().strip()):  # a busy machine may take longer
        assert time.monotonic() - start < 20
        time.sleep(0.01)


def is_running(pid: str) -> bool:
    words = _text(pid, "stat").split()
    return bool(words) and words[2] not in "ZX"


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment for a driver whose functions never return."""
    circle = {62: bytes.fromhex("ebfe909090909090"), 183: bytes.fromhex("0000001400000014")}
    monkeypatch.setattr(child, "CODE", circle)
    functions = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"]
    (tmp_path / "libcuda.so.1").write_bytes(child.make(functions, _elf.machine_here()))
    return {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.nightly
def test_doctor_reports_a_driver_that_hangs_and_not_cudnn(hanging: dict[str, str], site: Site) -> None:
    start = time.monotonic()
    found = examine(site.target, ["--timeout", "3"], hanging).report["findings"]
    (told,) = [each for each in found if each["code"] == "probe-hung"]
    assert told["message"].startswith("the driver did not return from ")
    assert time.monotonic() - start < 20


def test_children_end_when_the_doctor_is_killed(hanging: dict[str, str], tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE), "TMPDIR": str(tmp_path), **hanging}
    command = [sys.executable, "-m", "cudnn_ct", "doctor", "--require-driver", "--timeout", "60"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        children: list[int] = []
        while not any("libcuda.so.1" in _text(child, "maps") for child in children):
            assert process.poll() is None, "the doctor returned from a driver that hangs"
            time.sleep(0.05)
            children = _children(process.pid)
        process.kill()
    end = time.monotonic() + 10
    while any(_text(child, "maps") for child in children):
        assert time.monotonic() < end, f"{children} are still running"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [other for other in others if f"\nPPid:\t{pid}\n" in _text(other, "status")]


def _text(pid: int | str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def test_sandbox_reports_why_no_child_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    (report,) = child.run([({"mode": "driver", "shim": ""}, {})], 1)
    assert report.ended == "refused"
    assert "/nowhere/python" in report.words


@pytest.mark.parametrize("broken", [b"", make_elf("x")[:300]], ids=["empty", "truncated"])
@pytest.mark.parametrize(
    ("name", "code"), [("libz.so.1", "damaged-library"), ("libcrypto.so.3", ""), ("libcrypto.so.1.1", "")]
)
def test_doctor_runs_with_a_broken_library_that_modules_of_python_need(
    site: Site, name: str, code: str, broken: bytes
) -> None:
    if "libz" in name and python_needs_libz():
        pytest.skip("this Python is linked with libz")
    folder = site.write(site.root.parent / "first" / name, broken).parent
    answer = examine(site.target, environ={"LD_LIBRARY_PATH": str(folder)})
    assert (answer.codes(), answer.exit_code) == ({code} - {""}, int(bool(code)))


def test_doctor_notes_a_missing_driver_unless_it_is_required(site: Site) -> None:
    if examine(site.target).report["details"]["driver"]["library"]:
        pytest.skip("there is a driver here")
    for flags, severity in (([], "note"), (["--require-driver"], "error"), (["--require-gpu"], "error")):
        answer = examine(site.target, flags)
        assert ("no-driver" in answer.codes(severity), answer.exit_code) == (True, severity == "error")


@pytest.mark.nightly
def test_doctor_distinguishes_a_stub_from_a_broken_libcuda(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.root.parent / "driver"
    folder.mkdir()
    functions = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"]
    # A driver for CUDA 11.4 without a GPU: return 100 if the argument is 0, else *argument = 11040; return 0.
    old = {62: bytes.fromhex("85ff7506b864000000c3c707202b000031c0c39090909090"), 183: child.CODE[183]}
    with monkeypatch.context() as patch:
        patch.setattr(child, "CODE", old)
        old_driver = child.make(functions, _elf.machine_here())
    for data, code in (
        (old_driver, "driver-too-old" if _elf.machine_here() == 62 else "driver-stub"),
        (child.make(functions, _elf.machine_here()), "driver-stub"),
        (child.make([], _elf.machine_here())[:100], "driver-broken"),
        (child.make([], _elf.machine_here()), "driver-broken"),  # lacks cuInit: the probe fails
    ):
        site.write(folder / "libcuda.so.1", data)
        answer = examine(site.target, environ={"LD_LIBRARY_PATH": str(folder)})
        assert code in answer.codes("error"), answer.report["findings"]
        assert answer.exit_code == 1


def test_doctor_loads_all_libraries_without_a_driver_and_without_settings(site: Site) -> None:
    answer = examine(site.target, environ={"CUDNN_LIB_CONFIG": "GRAPH_JIT_ONLY", "CUDNN_LOGINFO_DBG": "0"})
    assert answer.exit_code == 0
    messages = [found["message"] for found in answer.report["findings"] if found["code"] == "cudnn-setting"]
    assert messages == ["CUDNN_LIB_CONFIG=GRAPH_JIT_ONLY is set; cuDNN was examined without it"]
    mapped = answer.report["details"]["child"]["mapped"]
    for library in site.source.set.libraries.values():
        assert str(site.lib / library.file) in mapped


SETTINGS = {
    "CUDNN_LIB_CONFIG": "FULL",
    "NVIDIA_TF32_OVERRIDE": "0",
    "CUDNN_FORWARD_COMPAT_DISABLE": "1",
    "CUDNN_FORCE_KERNEL_INIT": "1",
    "CUDNN_CONV_WSCAP_DBG": "1024",
    "CUDNN_FORT_ENABLE": "1",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_doctor_notes_a_variable_that_changes_cudnn(site: Site, name: str) -> None:
    answer = examine(site.target, environ={name: SETTINGS[name]})
    assert (answer.codes(), answer.exit_code) == (set(), 0)
    assert "cudnn-setting" in answer.codes("note")


def test_doctor_warns_of_the_same_cudnn_on_the_path(site: Site, tmp_path: Path) -> None:
    shutil.copytree(site.lib, tmp_path / "path", copy_function=os.link)
    answer = examine(site.target, environ={"LD_LIBRARY_PATH": str(tmp_path / "path")})
    assert (answer.codes(), answer.exit_code) == ({"shadowed"}, 1)


# --- flags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--expect 9.0", "unexpected-version"),
        ("--min 10", "unexpected-version"),
        ("--max 9.0.0", "unexpected-version"),
        ("--cuda-major 11", "unexpected-cuda"),
        ("--gpu 35", "no-gpu-code"),
        ("--gpu 90,20.0", "jit-for-gpu"),
        ("--expect {} --min 9.0 --max 9 --cuda-major {} --deep --gpu h200,8.6", ""),
    ],
)
def test_doctor_reports_requirements_that_are_not_met(site: Site, arguments: str, code: str) -> None:
    own = arguments.format(libraryset.write(site.source.set.version), site.source.set.cuda)
    answer = examine(site.target, ["--static", *own.split()])
    assert answer.codes() == ({code} if code else set())
    assert answer.exit_code == int(bool(code))
    verdicts = {"": "sound", "jit-for-gpu": "suspicious"}
    assert answer.report["verdict"] == verdicts.get(code, "not as required")


# --- images ------------------------------------------------------------------------------------------------


def test_doctor_reads_an_image_by_its_links_and_runs_nothing(site: Site) -> None:
    image = site.root.parent / "image"
    (image / "etc").mkdir(parents=True)
    (image / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (image / "opt").mkdir()
    shutil.move(site.lib, image / "opt/cudnn")
    for library in site.source.set.libraries.values():
        (image / "usr/lib/x86_64-linux-gnu" / library.file).symlink_to(f"/opt/cudnn/{library.file}")
    answer = examine(image)
    assert {Path(found["folder"]) for found in answer.report["cudnn"]} == {
        image / "opt/cudnn",
        image / "usr/lib/x86_64-linux-gnu",
    }
    assert not {"damaged-library", "broken-link"} & answer.codes()
    assert "child" not in answer.report["details"]
    assert "no-driver" in examine(image, ["--require-gpu"]).codes("error")
    (image / "opt/cudnn/libcudnn_adv.so.9").unlink()
    assert {"missing-library", "broken-link"} <= examine(image).codes("error")


# --- a running process -------------------------------------------------------------------------------------

LOADED = (
    "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
)


def with_libraries(*paths: Path, code: str = LOADED) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("root", ["/", "another"])
def test_doctor_examines_the_libraries_of_a_process(site: Site, tmp_path: Path, root: str) -> None:
    if root == "another" and os.geteuid() != 0:
        pytest.skip("only root may change its root folder")
    change = f"__import__('os').chroot({str(tmp_path)!r}); " if root == "another" else ""
    libraries = site.file("graph"), site.file("")
    with with_libraries(*libraries, code=LOADED.replace("print(", f"{change}print(")) as process:
        answer = examine(None, ["--pid", str(process.pid)])
        process.communicate("")
    assert answer.codes() == set()
    assert answer.report["cudnn"][0]["folder"].endswith(str(site.lib))
    assert set(answer.report["details"]["process"]["mapped"]) == set(map(str, libraries))


def test_doctor_reports_two_cudnns_and_a_deleted_file_of_a_process(site: Site) -> None:
    second = site.root.parent / "second"
    second.mkdir()
    shutil.copy(site.file("cnn"), second)
    shutil.copy(site.file("cnn"), second / "gone.so")
    os.replace(second / "gone.so", second / "libcudnn_cnn.so.9")
    libraries = *map(site.file, ("graph", "ops", "")), second / "libcudnn_cnn.so.9"
    with with_libraries(*libraries) as process:
        answer = examine(None, ["--pid", str(process.pid)])
        assert "two-cudnns" in answer.codes("error")
        (second / "libcudnn_cnn.so.9").unlink()
        assert "deleted-file" in examine(None, ["--pid", str(process.pid)]).codes("warning")
        process.communicate("")


def in_python(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return done.stdout.strip()


def test_here_examines_this_process(site: Site) -> None:
    code = (
        "import ctypes, sys; import cudnn_doctor as doctor\n"
        "before = doctor.here().verdict\n"
        "ctypes.CDLL(sys.argv[1]).cudnnGetVersion()\n"
        "found = doctor.here(); print(before, found.verdict, found.sets[0].folder, sep='|')"
    )
    assert in_python(code, site.file("")) == f"not found|sound|{site.lib}"


# --- the API -----------------------------------------------------------------------------------------------


def test_static_diagnosis_opens_no_library(site: Site) -> None:
    code = (
        "import sys; import cudnn_doctor as doctor\n"
        "found = doctor.diagnose(sys.argv[1], run=False)\n"
        "print(found.verdict, any('libcudnn' in line for line in open('/proc/self/maps')))"
    )
    assert in_python(code, site.lib) == "sound False"


def test_verdict_lines_names_the_defect_and_the_fix(site: Site, tmp_path: Path) -> None:
    assert doctor.verdict_lines(tmp_path / "nothing") != []
    site.file("adv").unlink()
    (line,) = (line for line in doctor.verdict_lines(site.file("")) if "missing-library" in line)
    assert "libcudnn_adv.so.9 is not in" in line
    package = site.source.set.package
    assert f"fix: install {package}==9." in line
    assert f" -m pip download --no-deps --dest {site.root}/.cudnn-doctor {package}==9." in line


CALLS = """
import ctypes
from cudnn_doctor import sandbox

stub = sandbox.in_memory(["cuInit"], planning=True)
library = ctypes.CDLL(f"/proc/self/fd/{stub}")
handle = ctypes.c_void_p()
assert library.cuInit(0) == 34
assert library.cuLaunchKernel(None) == 34
assert library.cuLibraryUnload(None) == 0
assert library.cuLibraryGetKernel(ctypes.byref(handle), None, b"kernel") == 0
assert handle.value
assert library.cuGetErrorString(1, None) == 34
"""


def test_stub_for_planning_loads_kernels_and_launches_none() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
