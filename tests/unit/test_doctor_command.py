"""The command ``cudnn-ct doctor`` without cuDNN: arguments, exit codes, paths of every kind, output."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_doctor as doctor
from cudnn_ct import __version__
from cudnn_doctor import locate, main, process, report
from cudnn_doctor.finding import Severity, finding, is_styled
from cudnn_doctor.main import USAGE, parse, requirements_of
from tests.elf_files import DT_GNU_HASH, DT_RUNPATH, DT_STRTAB, DT_SYMTAB, DT_VERNEED, assemble, make_cudnn

MonkeyPatch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(doctor.__file__).parents[1])}


def answer(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def first(found: dict[str, Any]) -> str:
    return str(found["findings"][0]["code"])


# --- arguments ---------------------------------------------------------------------------------------------


WRONG = (
    "--min 9.28 --max 9.1", "--expect 9.27 --min 9.28", "--expect 9.27 --max 9.26.1", "--expect nine",
    "--gpu hopper", "--arch hopper", "--cuda-major -12", "--cuda-major 0", "--pid 0", "--pid x", "--pid 1 /",
    "--pid 1 --deep",
    "--pid 1 --require-gpu", "--static --require-driver", "--json --format github", "--format xml",
    "--timeout 0", "--timeout nan", "--timeout soon", "one two", "--no-such-flag", "--min ",
)  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG)
def test_doctor_exits_with_2_on_wrong_usage(arguments: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments.split(" "))
    assert caught.value.code == USAGE == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert "cudnn-ct doctor: " in written.err
    assert "--timeout 0" not in arguments or "above 0 and up to 86400" in written.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("--jsn", "did you mean --json?"),
        ("--expct=9.27", "did you mean --expect?"),
        ("--sttic --json", "did you mean --static?"),
        ("--requre-gpu", "did you mean --require-gpu?"),
        ("--gpu h2000", "did you mean h200?"),
        ("--format jsn", "did you mean json?"),
        ("--fail-on warn", "did you mean warning?"),
        ("--explain no-gpus", "did you mean no-gpu?"),
        ("--qzx", "unrecognized arguments: --qzx\n"),
    ],
)
def test_doctor_names_the_option_that_is_meant(arguments: str, hint: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments.split())
    assert caught.value.code == USAGE
    assert hint in capsys.readouterr().err


def test_doctor_prints_its_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"cudnn-ct, version {__version__}\n")


@pytest.mark.parametrize(
    ("given", "archs"),
    [("75,9.0,sm_120a", (75, 90, 120)), ("h200", (90,)), ("T4,b200", (75, 100)), ("90,h200", (90,))],
)
def test_gpu_option_reads_capabilities_and_names(given: str, archs: tuple[int, ...], capsys: Capture) -> None:
    assert requirements_of(parse(["--gpu", given])).archs == archs
    assert capsys.readouterr().err == ""
    assert requirements_of(parse([f"--arch={given}"])).archs == archs
    assert capsys.readouterr().err == "cudnn-ct doctor: --arch was renamed: use --gpu\n"


def test_doctor_reports_variables_that_are_not_read(capsys: Capture, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_CT_WORKSPCE_LIMIT", "1G")
    monkeypatch.setenv("CUDNN_CT_WORKSPACE_LIMIT", "1G")
    for arguments in (("--static", "/nowhere"), ("--pid", str(os.getppid()))):
        code, found = answer(capsys, *arguments)
        rows = [row for row in found["findings"] if row["code"] == "unknown-setting"]
        if arguments[0] == "--pid":  # the environment of that process
            assert rows == []
            continue
        (row,) = rows
        assert code == 3
        assert row["severity"] == "warning"
        assert row["message"] == "CUDNN_CT_WORKSPCE_LIMIT=1G is ignored: cudnn_ct has no such setting"
        assert "use CUDNN_CT_WORKSPACE_LIMIT" in row["fix"]


def test_doctor_reports_the_variables_of_another_process(capsys: Capture) -> None:
    wrong = {**os.environ, "CUDNN_CT_REPLY": "0"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], env=wrong, stdin=subprocess.PIPE)
    try:
        _, found = answer(capsys, "--pid", str(child.pid))
    finally:
        child.communicate()
    (row,) = [row for row in found["findings"] if row["code"] == "unknown-setting"]
    assert "use CUDNN_CT_REPLAY" in row["fix"]


# --- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",  # the last for example from an unset variable
    ["nothing", "pipe", "loop", "notes.txt", "x" * 5000, "\0x", "/dev/null", ""],
    ids=["missing", "pipe", "loop", "text", "long name", "null character", "device", "empty"],
)
def test_doctor_reports_a_path_that_cannot_be_examined(
    tmp_path: Path, path: str, capsys: Capture, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "notes.txt").write_text("no library")
    code, found = answer(capsys, "--static", path)
    assert (code, found["verdict"], first(found)) == (3, "not found", "cannot-look")
    if path == "":
        assert main.main(["--static", path]) == 3
        told = "'': no cuDNN was examined\n\nerror    cannot-look: '' is not"
        assert capsys.readouterr().out.startswith(told)


def lock(monkeypatch: MonkeyPatch, folder: Path, listed: bool = False) -> None:
    """Deny access to a folder, or only to its contents, as modes do for users other than root."""

    def refusing(name: str, function: Any) -> Any:
        def refuse(path: Any, *arguments: Any, **keywords: Any) -> Any:
            where = Path(path).absolute() if isinstance(path, str | Path) else Path()
            if folder in where.parents or (where == folder and not listed and name != "stat"):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **keywords)

        return refuse

    for name in ("open", "scandir", "listdir", "stat"):
        monkeypatch.setattr(os, name, refusing(name, getattr(os, name)))


def test_diagnose_names_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    closed = make_cudnn(tmp_path / "closed/lib", "9.27.0").parent.parent
    lock(monkeypatch, closed)
    alone = doctor.diagnose(tmp_path, run=False)
    assert (alone.verdict, {each.code for each in alone.findings}) == (
        "not found",
        {"no-cudnn", "unreadable-folder"},
    )
    make_cudnn(tmp_path / "lib", "9.27.0")
    (warning,) = [each for each in doctor.diagnose(tmp_path, run=False).findings if "unread" in each.code]
    assert (warning.severity.word, warning.commands) == ("warning", (f"chmod a+rx {closed}",))
    for root, severity in ((str(tmp_path), "note"), ("", "warning")):  # programs skip it too
        usual = locate.usual({"CUDNN_PATH": root, "CUDA_HOME": str(closed)}, [])
        notes = [each.severity.word for each in usual.findings if each.code == "unreadable-folder"]
        assert notes == ["note"] if usual.found else [severity]


@pytest.mark.parametrize("listed", [False, True])
def test_diagnose_names_the_folder_that_cannot_be_entered_first(
    tmp_path: Path, monkeypatch: MonkeyPatch, listed: bool
) -> None:
    folders = [tmp_path / name / "nvidia/cudnn" for name in ("a", "b")]
    for folder in folders:
        make_cudnn(folder / "lib", "9.27.0")
        (folder / "include").mkdir()
        record = folder.parents[1] / "nvidia_cudnn_cu12-9.27.0.42.dist-info/RECORD"
        record.parent.mkdir()
        record.write_text("nvidia/cudnn/lib/libcudnn.so.9,,1\n")
        lock(monkeypatch, folder, listed)
    found = doctor.diagnose(tmp_path, run=False)
    assert [each.code for each in found.findings] == ["unreadable-folder", "no-cudnn"]
    assert found.exit_code() == 3
    assert found.findings[1].fix.startswith("see unreadable-folder")
    assert found.commands == (f"chmod a+rx {folders[0]} {folders[1]}",)


@pytest.mark.parametrize(("limit", "value"), [("MAX_FOLDERS", 4), ("MAX_FOUND", 1)])
def test_locate_reports_a_limit(tmp_path: Path, monkeypatch: MonkeyPatch, limit: str, value: int) -> None:
    make_cudnn(tmp_path / "lib", "9.27.0")
    make_cudnn(tmp_path / "x/y/z/lib", "9.27.0")
    monkeypatch.setattr(locate, limit, value)
    found = locate.named(str(tmp_path))
    assert [place.folder for place in found.found] == [str(tmp_path / "lib")]
    assert [each.code for each in found.findings] == ["cut-short"]


def test_doctor_escapes_control_characters_in_names(tmp_path: Path, capsys: Capture) -> None:
    for name in ("\033[31mred\nline", os.fsdecode(b"\xff\xfe")):
        make_cudnn(tmp_path / name)
        main.main(["--static", str(tmp_path / name)])
        written = capsys.readouterr().out
        assert "\033" not in written
        assert "red\nline" not in written
        assert main.main(["--static", "--json", str(tmp_path / name)]) in (0, 1)
        json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("link", ["nvidia", "nvidia/cudnn", "nvidia/cudnn/lib"])
def test_diagnose_finds_a_cudnn_by_folder_file_and_the_links_of_installers(tmp_path: Path, link: str) -> None:
    shim = make_cudnn(tmp_path / "store/nvidia/cudnn/lib", "9.27.0")
    site = tmp_path / "site"
    (site / link).parent.mkdir(parents=True)
    (site / link).symlink_to(tmp_path / "store" / link)
    (site / "lib").symlink_to(site)  # a circle
    for path in (site, tmp_path / "store", shim.parent, shim):
        assert [each.folder for each in doctor.diagnose(path, run=False).sets] == [str(shim.parent)]


def test_doctor_reports_other_major_versions(tmp_path: Path, capsys: Capture) -> None:
    for name, code in (("libcudnn.so.8", "old-cudnn"), ("libcudnn.so.10", "cannot-look")):
        (tmp_path / name).touch()
        exit_code, found = answer(capsys, "--static", str(tmp_path))
        assert (exit_code, first(found)) == (1 if code == "old-cudnn" else 3, code)
    make_cudnn(tmp_path / "nine", "9.27.0")
    _, found = answer(capsys, "--static", str(tmp_path / "nine"))
    assert not {"old-cudnn", "cannot-look"} & {each["code"] for each in found["findings"]}


# --- processes, and bugs of the doctor ---------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_doctor_reports_a_process_that_it_cannot_examine(monkeypatch: MonkeyPatch, capsys: Capture) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        code, found = answer(capsys, "--pid", str(child.pid))
        child.communicate()
    assert (code, first(found)) == (3, "none-loaded")
    ended = answer(capsys, "--pid", str(child.pid))
    monkeypatch.setattr(process, "read_maps", raising(PermissionError(13, "Permission denied")))
    foreign = answer(capsys, "--pid", "1")
    for (code, found), words in ((ended, "no such process"), (foreign, "Permission denied")):
        assert (code, first(found)) == (3, "cannot-look")
        assert words in found["findings"][0]["message"]


def test_doctor_reports_its_own_bug_and_an_interruption(monkeypatch: MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(main, "diagnose", raising(ZeroDivisionError("by us")))
    code, found = answer(capsys)
    assert (code, first(found)) == (3, "internal-error")
    assert "ZeroDivisionError: by us" in found["findings"][0]["message"]
    monkeypatch.setattr(main, "diagnose", raising(KeyboardInterrupt()))
    assert main.main([]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", ["text", "json", "github", "junit"])
def test_doctor_reports_a_bug_in_its_report(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capture, form: str
) -> None:
    make_cudnn(tmp_path, "9.27.0")
    monkeypatch.setattr(report, "_set", lambda *_: 1 / 0)
    monkeypatch.setattr(report, "verdict", lambda found: 1 / 0 if found.sets else found.subject)
    assert main.main(["--static", "--format", form, str(tmp_path)]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().out


# --- without other packages -----------------------------------------------------------------------

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "cuda", "click", "rich", "ml_dtypes", "platformdirs"):
            raise ImportError("broken here: " + name)
sys.meta_path.insert(0, Block())
"""


def blocked(arguments: list[str], entry: str) -> subprocess.CompletedProcess[str]:
    code = f"{BLOCKED}\nsys.argv[1:] = {arguments}\n{entry}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ())


AS_MODULE = "import runpy; runpy.run_module('cudnn_ct', run_name='__main__')"
AS_SCRIPT = "from cudnn_ct.__main__ import main; main()"


@pytest.mark.parametrize("entry", [AS_MODULE, AS_SCRIPT], ids=["python -m cudnn_ct", "cudnn-ct"])
def test_doctor_needs_only_the_standard_library(tmp_path: Path, entry: str) -> None:
    make_cudnn(tmp_path, "9.27.0", without=["adv"])
    done = blocked(["doctor", "--static", str(tmp_path)], entry)
    assert (done.returncode, done.stderr) == (1, "")
    assert "missing-library: libcudnn_adv.so.9 is not in" in done.stdout


def test_doctor_imports_no_module_that_only_other_commands_need(tmp_path: Path) -> None:
    make_cudnn(tmp_path, "9.27.0")
    code = (
        "import sys, cudnn_doctor.main as m; m.diagnose(sys.argv[1], run=False)\n"
        "ours = {f'cudnn_doctor.{name}' for name in ('driver', 'pe', 'process', 'sandbox')}\n"
        "print({'pathlib', 'subprocess', 'threading', *ours} & {*sys.modules})"
    )
    command = [sys.executable, "-S", "-c", code, str(tmp_path)]  # without the modules of .pth files
    assert subprocess.run(command, capture_output=True, text=True, env=environ()).stdout == "set()\n"


def test_other_commands_fail_in_one_line_when_a_package_is_broken() -> None:
    done = blocked(["info"], AS_SCRIPT)
    assert done.returncode == 1
    assert done.stderr.startswith("cudnn-ct: broken here: click, and only `doctor` does without: ")
    assert len(done.stderr.splitlines()) == 1


def test_click_passes_all_arguments_to_the_doctor(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from cudnn_ct.cli import main as command

    make_cudnn(tmp_path, "9.27.0", without=["adv"])
    done = CliRunner().invoke(command, ["doctor", "--static", "--json", str(tmp_path)])
    assert done.exit_code == 1
    assert json.loads(done.output)["errors"] == 1
    assert CliRunner().invoke(command, ["doctor", "--help"]).exit_code == 0


# --- reports ---------------------------------------------------------------------------------------


@pytest.fixture
def diagnosis(tmp_path: Path) -> doctor.Diagnosis:
    make_cudnn(tmp_path, "9.27.0", without=["adv", "cnn"], ops="9.10.2")
    return doctor.diagnose(tmp_path, run=False)


def test_report_formats_text_and_annotations(diagnosis: doctor.Diagnosis, tmp_path: Path) -> None:
    written = report.text(diagnosis)
    head, *rest = written.splitlines()
    assert head.startswith(f"cuDNN 9.27.0 in {tmp_path.resolve()}: broken (3 errors")
    assert written.count("cuDNN is a set of libraries") == 1
    assert "\033" not in written
    assert "\033[1;31merror" in report.text(diagnosis, colour=True)
    assert any(line.startswith("error    mixed-versions: libcudnn_ops.so.9 is 9.10.2") for line in rest)
    odd = finding("no-driver", "100 % of it: a, b", advice="x")
    annotation, verdict = report.github(doctor.Diagnosis("x", (), (odd,)), Severity.ERROR).splitlines()
    assert annotation.startswith("::notice title=cudnn-ct doctor%3A no-driver::100 %25 of it: a, b%0A")
    assert verdict == "x: no cuDNN was examined"


@pytest.mark.parametrize(
    ("examined", "codes", "strict", "exit_code"),
    [
        (True, "", False, 0),
        (True, "no-driver", True, 0),
        (True, "private-file", False, 0),
        (True, "private-file", True, 1),
        (True, "private-file mixed-cuda", True, 1),
        *((False, code, False, 3) for code in ("deleted-file", "cut-short", "no-driver")),
        (False, "old-cudnn", False, 1),
    ],
)
def test_diagnosis_exit_code_depends_on_severity(
    diagnosis: doctor.Diagnosis, examined: bool, codes: str, strict: bool, exit_code: int
) -> None:
    findings = tuple(finding(code, "x", path="p", advice="do it") for code in codes.split())
    assert doctor.Diagnosis("x", diagnosis.sets * examined, findings).exit_code(Severity(strict)) == exit_code


def test_report_uses_colours_on_a_terminal_unless_no_color(monkeypatch: MonkeyPatch) -> None:
    terminal_stream = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for value, expected in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        assert is_styled(terminal_stream) is expected


@pytest.mark.parametrize(("version", "code"), [("9.27.0", 0), ("9.26.0", 1)], ids=["sound", "broken"])
@pytest.mark.parametrize(
    ("closed", "unwritten"), [(">&-", 0), ("| head -c 0", 0), (">/dev/full", 1)], ids=["none", "pipe", "full"]
)
def test_doctor_returns_its_exit_code_when_the_output_cannot_be_written(
    tmp_path: Path, closed: str, unwritten: int, version: str, code: int
) -> None:
    """On a full disk a sound cuDNN gives 1, because the report is incomplete."""
    make_cudnn(tmp_path, "9.27.0", ops=version)
    command = f"{sys.executable} -m cudnn_ct doctor --static {tmp_path} {closed}; echo ${{PIPESTATUS[0]}}"
    for unbuffered in ("", "1"):
        given = {**environ(), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=given)
        assert done.stdout.strip() == str(code or unwritten)
        assert "Traceback" not in done.stderr


# --- files made to exhaust memory or time ------------------------------------------------------------------

LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
sys.argv = ["cudnn-ct", "doctor", "--static", "--json", sys.argv[1]]
runpy.run_module("cudnn_ct", run_name="__main__")
"""


def table(bucket: int, *, first: int = 1, chain: int = 0) -> bytes:
    """A GNU hash table with one bucket, and the number of chained symbols before the last one."""
    return struct.pack("<IIIIQI", 1, first, 1, 0, 0, bucket) + bytes(4 * chain) + struct.pack("<I", 1)


def overlapping_names() -> dict[int, bytes]:
    """Symbols whose names are all ends of a few long names."""
    strings = b"".join(bytes([letter]) * 16_000 + b"\0" for letter in b"abcd")
    symbols = b"".join(struct.pack("<IBxHQQ", at, 0x11, 1, 0, 0) for at in range(len(strings)))
    last = len(strings) - 1
    return {DT_STRTAB: strings, DT_SYMTAB: symbols, DT_GNU_HASH: table(last, first=last)}


def repeated_versions(count: int) -> bytes:
    """A list of libraries that all need one symbol version 65,535 times."""
    rows = (struct.pack("<HHIII", 1, 65_535, 1, 16 * (count - row), 16) for row in range(count))
    return b"".join(rows) + bytes(32)


HOSTILE: dict[str, dict[int, bytes]] = {
    "overlapping names": overlapping_names(),
    "a long search path": {DT_STRTAB: b"\0" + b"a:" * 2**21},
    "a long chain": {DT_STRTAB: bytes(8), DT_SYMTAB: bytes(24), DT_GNU_HASH: table(1, chain=2**24)},
    "repeated versions": {DT_STRTAB: bytes(8), DT_VERNEED: repeated_versions(1000)},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_doctor_rejects_a_hostile_library_within_limits(tmp_path: Path, case: str) -> None:
    """256 MiB of memory and 5 s are enough."""
    path = make_cudnn(tmp_path).with_name("libcudnn_ops.so.9")
    path.write_bytes(assemble(HOSTILE[case], [(DT_RUNPATH, 1)] if case == "a long search path" else []))
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=60)
    assert done.returncode == 1, done.stderr
    errors = [each["message"] for each in json.loads(done.stdout)["findings"] if each["severity"] == "error"]
    assert any(str(path) in error for error in errors)


# --- the older name ----------------------------------------------------------------------------------------

OLD_NAMES = """
import importlib, pkgutil, sys
old = importlib.import_module("cudnn_ct.doctor")
from cudnn_ct import doctor
assert doctor is old
import cudnn_doctor
for name in cudnn_doctor.__all__:
    assert getattr(old, name) is getattr(cudnn_doctor, name), name
for found in pkgutil.iter_modules(cudnn_doctor.__path__):
    if found.name not in ("__main__", "read"):
        here = importlib.import_module(f"cudnn_ct.doctor.{found.name}")
        assert here is importlib.import_module(f"cudnn_doctor.{found.name}"), found.name
        assert getattr(old, found.name) is here
from cudnn_ct.doctor.finding import Severity
import cudnn_ct.doctor.report as report
assert (report.Severity, Severity) == (cudnn_doctor.Severity,) * 2
"""


def test_older_name_has_the_same_names_and_modules() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", OLD_NAMES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["cudnn_doctor", "cudnn_ct.doctor", "cudnn_ct"])
def test_command_runs_by_each_name_of_the_module(module: str) -> None:
    command = [sys.executable, "-W", "error", "-m", module, *(["doctor"] if module == "cudnn_ct" else [])]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"cudnn-ct, version {__version__}\n"), done.stderr


def test_doctor_imports_nothing_of_cudnn_ct() -> None:
    code = """
import pkgutil, sys, cudnn_doctor
for found in pkgutil.walk_packages(cudnn_doctor.__path__, "cudnn_doctor."):
    __import__(found.name)
print([name for name in sys.modules if name.partition(".")[0] == "cudnn_ct"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
