"""``library_info`` and ``cudnn-ct info``: with the installed wheel, with broken files, and without cuDNN."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from cudnn_ct._bindings import GENERATED_FROM
from cudnn_ct.errors import format_version
from tests.elf_files import make_cudnn, make_elf, make_jit
from tests.processes import PYTHONPATH, Done, run_python

from .wheels import SEARCHED, WHEEL, needs_cudnn


def run(*arguments: object, library: Path | str | None = None, **environ: str) -> Done:
    """Run the command in a process with a clean environment."""
    if library is not None:
        environ["CUDNN_CT_LIBRARY"] = str(library)
    without = (*SEARCHED, "CUDNN_CT_LIBRARY")
    return run_python("-W", "error", "-m", "cudnn_ct", *arguments, without=without, **environ)


def info(library: Path | str | None = None, *, code: int = 0, **environ: str) -> dict[str, object]:
    """Return the output of ``info --json``, after checking its exit code."""
    ran = run("info", "--json", library=library, **environ)
    assert ran.returncode == code, ran.stderr
    told = json.loads(ran.stdout)
    assert isinstance(told, dict)
    assert (told["problem"] is None) == (code == 0)
    assert ran.stderr == ("" if code == 0 else f"cudnn-ct: {told['problem']}\n")
    return told


def linked(folder: Path) -> Path:
    """Write a copy of the small libcudnn.so.9 and links to the large libraries, and return the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in WHEEL.parent.glob("libcudnn_*.so.9"):
        (folder / file.name).symlink_to(file)
    return Path(shutil.copy(WHEEL, folder / "libcudnn.so.9"))


# --- the wheel ---------------------------------------------------------------------------------------------


@needs_cudnn
def test_info_describes_the_wheel() -> None:
    told = info()
    assert told["schema"] == 1
    assert told["path"] == str(WHEEL.resolve())
    assert told["found_via"] == "wheel"
    assert told["version"] == told["header"]["version"]
    assert re.fullmatch(r"1\d\.\d+", told["cuda_version"])
    assert told["bindings"] == format_version(GENERATED_FROM)
    assert [step for step, _ in told["steps"]] == ["CUDNN_CT_LIBRARY", "already loaded", "wheel"]
    parts = {part["name"]: part for part in told["sublibraries"]}
    assert [parts[name]["version"] for name in ("graph", "ops", "adv")] == [told["version"]] * 3
    for part in parts.values():
        assert part["mapped"] or part["note"]
    cuda = told["cuda_version"].partition(".")[0]
    for name in ("cublaslt", "cudart"):
        assert told[name]["path"] is None or told[name]["path"].endswith(f".so.{cuda}")
        assert told[name]["path"] is None or told[name]["version"].startswith(f"{cuda}.")
    assert (told["driver"]["path"] is None) == bool(told["driver"]["note"])
    assert not told["cublaslt"]["mapped"]  # loading takes 60 ms, and no graph needs it


@needs_cudnn
def test_info_notes_a_private_library_in_any_locale(tmp_path: Path) -> None:
    shim = linked(tmp_path / "Ordner mit Leer \u00fcn\u00ef")
    shim.chmod(0o600)
    told = info(shim, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert told["header"] is None
    assert len(told["notes"]) == 1  # and none about other loaded libraries
    assert "chmod a+r" in told["notes"][0]


# --- errors -----------------------------------------------------------------------------------------


def test_info_describes_broken_files_without_opening_them(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "lib", "9.27.0", without=["cnn"])
    (shim.parent / "libcudnn_adv.so.9").write_bytes(make_elf("libcudnn_adv.so.9")[:-8])
    told = info(shim, code=1)
    assert "libcudnn_adv.so.9 is truncated" in told["problem"]
    assert (told["path"], told["version"]) == (str(shim), "9.27.0")
    parts = {part["name"]: part for part in told["sublibraries"]}
    assert (parts["cnn"]["path"], parts["cnn"]["note"]) == (None, "does not exist")
    assert parts["adv"]["note"] == "truncated"
    assert not any(part["mapped"] for part in parts.values())
    assert told["notes"] == []  # libcublasLt is not searched, because its version is unknown


def test_info_notes_a_jit_wheel_that_a_full_one_hides(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "nvidia/cudnn/lib")
    jit = make_jit(tmp_path / "nvidia/cudnn_jit/lib").parent
    told = info(code=1, PYTHONPATH=f"{tmp_path}:{PYTHONPATH}")
    assert f"the JIT wheel in {jit} is not used, because a full cuDNN precedes it" in told["notes"]
    (jit / "libcudnn_graph.so.9").write_bytes(b"")
    assert "cuDNN                     of unknown version, JIT\n" in run("info", library=jit).stdout


def test_info_fails_when_the_library_is_not_a_cudnn_9(tmp_path: Path) -> None:
    assert info(make_cudnn(tmp_path / "lib"), code=1)["problem"]  # it has no functions
    (tmp_path / "libcudnn.so.8").write_bytes(make_elf("libcudnn.so.8"))
    assert ">= 9.0" in info(tmp_path / "libcudnn.so.8", code=1)["problem"]


# --- the driver --------------------------------------------------------------------------------------------


def test_info_reports_a_driver_library_that_cannot_be_used(tmp_path: Path) -> None:
    path, whole = tmp_path / "libcuda.so.1", make_elf("libcuda.so.1")
    for data in (whole[:-8], whole):  # truncated; without functions
        path.write_bytes(data)
        told = info(tmp_path / "nothing.so", code=1, LD_LIBRARY_PATH=str(tmp_path))
        assert str(tmp_path / "nothing.so") in told["problem"]
        assert told["version"] is None
        assert told["steps"] == [["CUDNN_CT_LIBRARY", str(tmp_path / "nothing.so")]]
        assert told["driver"]["path"] == str(path)
        assert ("is truncated" in told["driver"]["note"]) == (data != whole)
