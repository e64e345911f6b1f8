"""The doctor runs with Python 3.8 and newer, as a package and as one file; older versions get one line."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from tests.elf_files import make_cudnn
from tests.nightly import some
from tests.pythons import find_python

ROOT = Path(cudnn_ct.__file__).parents[1]
TOOLS = Path(__file__).parents[2] / "tools"
if not TOOLS.is_dir():
    pytest.skip("tools/ is not next to these tests", allow_module_level=True)

sys.path.insert(0, str(TOOLS))
import doctor_pyz  # noqa: E402

sys.path.remove(str(TOOLS))

NEW = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
OLD = ("2.7", "3.6", "3.7")
SOURCES = [path for name in doctor_pyz.FOLDERS for path in sorted((ROOT / name).glob("*.py"))]

# Names of the standard library that Python 3.8 does not have.
TOO_NEW = {
    "removeprefix", "removesuffix", "is_relative_to", "file_digest", "BooleanOptionalAction", "with_stem",
    "bit_count", "pairwise", "batched", "randbytes", "unparse", "StrEnum", "TaskGroup", "exception",
}  # fmt: skip


def python(version: str) -> Path:
    found = find_python(version)
    if not found:
        pytest.skip(f"Python {version} is not installed")
    return found


def run(command: list[Any], **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CI")}
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env={**clean, **environ}, check=False
    )


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pyz") / "cudnn-doctor.pyz"
    doctor_pyz.build(file, ROOT)
    return file


# --- sources -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_sources_have_the_syntax_and_the_names_of_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    names = {getattr(node, "attr", getattr(node, "name", "")) for node in ast.walk(tree)}
    assert not names & TOO_NEW
    for node in ast.walk(tree):  # types that are evaluated
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            assert not isinstance(node.args[1], ast.BinOp), ast.unparse(node)


def test_pyz_has_all_modules_that_the_doctor_imports(pyz: Path) -> None:
    done = run([sys.executable, "-I", "-S", pyz, "--explain", "no-gpu"])
    assert done.stdout.startswith("no-gpu (note)"), done.stderr
    with zipfile.ZipFile(pyz) as archive:
        names = set(archive.namelist())
    for path in SOURCES:
        package = path.relative_to(ROOT).parent.as_posix().replace("/", ".")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("cudnn_")):
                base = resolve_name("." * node.level + (node.module or ""), package).replace(".", "/")
                inner = {f"{base}/{alias.name}.py" for alias in node.names} | {f"{base}.py"}
                assert names & {*inner, f"{base}/__init__.py"}, f"{path}:{node.lineno}"


def test_pyz_is_the_same_file_each_time(pyz: Path, tmp_path: Path) -> None:
    doctor_pyz.build(tmp_path / "again", ROOT)
    assert (tmp_path / "again").read_bytes() == pyz.read_bytes()


# --- other versions of Python ------------------------------------------------------------------------------


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stderr == ""
    found = json.loads(done.stdout)
    found["findings"] = [each for each in found["findings"] if each["code"] != "other-cudnn"]
    for value in (found, *found["findings"]):
        value["commands"] = len(value["commands"])
    return {key: found[key] for key in ("verdict", "exit_code", "findings", "cudnn", "verified", "commands")}


@pytest.mark.parametrize("version", some(NEW, 3))
def test_doctor_gives_the_same_report_with_each_python(tmp_path: Path, pyz: Path, version: str) -> None:
    other = python(version)
    make_cudnn(tmp_path / "site/nvidia/cudnn/lib", "9.27.0", without=["adv"], ops="9.10.2")
    (tmp_path / "site/torch-2.dist-info").mkdir()
    (tmp_path / "site/torch-2.dist-info/METADATA").write_text("Requires-Dist: nvidia-cudnn-cu12==9.10.2.21\n")
    flags = ["--static", "--json", "--gpu", "90", tmp_path / "site"]
    here = report(run([sys.executable, "-m", "cudnn_doctor", *flags], PYTHONPATH=str(ROOT)))
    assert here["verdict"] == "broken"
    strict = [other, "-W", "error"]
    as_package = run([*strict, "-m", "cudnn_doctor", *flags], PYTHONPATH=str(ROOT))
    assert report(as_package) == here
    old_name = run([*strict, "-m", "cudnn_ct.doctor", *flags], PYTHONPATH=str(ROOT))
    assert report(old_name) == here
    assert report(run([*strict, "-I", "-S", pyz, *flags])) == here


@pytest.mark.parametrize("version", OLD)
def test_older_pythons_get_one_line(tmp_path: Path, pyz: Path, version: str) -> None:
    done = run([python(version), pyz, tmp_path])
    line = f"cudnn-doctor: Python 3.8 or newer is needed, this is {version}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    if version != "2.7":
        for module in ("cudnn_doctor", "cudnn_ct.doctor"):
            done = run([python(version), "-m", module], PYTHONPATH=str(ROOT))
            assert (done.returncode, done.stderr.replace("ct ", "")) == (1, line)


def test_python_without_tomllib_says_that_pyproject_was_not_read(tmp_path: Path, pyz: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.cudnn-doctor]\nstrict = true\n")
    make_cudnn(tmp_path / "lib")
    command = ["sh", "-c", 'cd "$0" && "$1" "$2" --static lib', tmp_path, python("3.8"), pyz]
    done = run(command)
    path = tmp_path / "pyproject.toml"
    assert done.stderr == f"cudnn-ct doctor: {path} was not read: that needs Python 3.11 or newer\n"
    assert "sound" in done.stdout


# --- an empty image ----------------------------------------------------------------------------------------


def libraries_of(files: list[Path]) -> set[str]:
    """Return the shared libraries that files need, by ldd."""
    done = run(["ldd", *files])
    words = [word for line in done.stdout.splitlines() if not line.endswith(":") for word in line.split()]
    return {word for word in words if word.startswith("/") and Path(word).exists()}


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_pyz_runs_in_an_empty_image(tmp_path: Path, pyz: Path, version: str) -> None:
    """The image has a Python and the libraries that it needs: no /proc, /tmp, /dev, shell or package."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ldd"):
        pytest.skip("only root may change its root folder")
    real = Path(os.path.realpath(python(version)))
    prefix, image = real.parents[1], tmp_path / "image"
    if prefix == Path("/usr"):
        pytest.skip(f"Python {version} is part of the system")
    files = [real, *prefix.glob("lib/python*/lib-dynload/*.so")]
    for library in libraries_of(files):
        if prefix not in Path(library).parents:
            (image / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, image / library[1:])
    (image / str(prefix)[1:]).mkdir(parents=True)
    make_cudnn(image / "app/lib", "9.27.0", without=["cnn"])
    shutil.copy(pyz, image / "doctor.pyz")
    mount = f"mount --bind '{prefix}' '{image}{prefix}' && exec chroot '{image}' '{real}' '/doctor.pyz' "
    namespace = ["unshare", "-m", "sh", "-c"]
    if run([*namespace, "mount -t tmpfs none /mnt"]).returncode:
        pytest.skip("mounts are not allowed here")
    for flags, verdict in (("/app", "broken"), ("--static /app", "broken"), ("", "not found")):
        done = run([*namespace, f"{mount} --json {flags}"])
        assert done.returncode in (1, 3), done.stderr
        assert json.loads(done.stdout)["verdict"] == verdict
