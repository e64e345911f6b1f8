"""Installations with two defects: both are reported, the cause first, and no fix of one worsens the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudnn_ct import doctor
from cudnn_ct.doctor import diagnosis
from cudnn_ct.doctor.finding import finding
from tests.elf_files import make_cudnn, make_elf
from tests.unit.test_doctor_metadata import write_metadata


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of ``pip install --target`` with a cuDNN for CUDA 12 and a libcublasLt."""
    make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.28.0", cuda=12)
    (tmp_path / "nvidia/cublas/lib").mkdir(parents=True)
    (tmp_path / "nvidia/cublas/lib/libcublasLt.so.12").write_bytes(make_elf("libcublasLt.so.12"))
    return tmp_path


def record(site: Path, label: str, files: list[str]) -> None:
    info = site / f"{label}.dist-info"
    info.mkdir()
    sizes = [(name, os.path.getsize(site / name)) for name in files]
    (info / "RECORD").write_text("".join(f"{name},,{size}\n" for name, size in sizes))


def test_one_library_for_another_processor_hides_no_broken_companion(site: Path) -> None:
    ops = site / "nvidia/cudnn/lib/libcudnn_ops.so.9"
    ops.write_bytes(make_elf(ops.name, machine=21))
    (site / "nvidia/cublas/lib/libcublasLt.so.12").write_bytes(b"")
    codes = {each.code for each in doctor.diagnose(site, run=False).findings}
    assert {"foreign-machine", "damaged-library"} <= codes


def test_a_divided_environment_keeps_the_libraries_of_the_version_on_disk(site: Path) -> None:
    lib = "nvidia/cudnn/lib"
    names = sorted(name for name in os.listdir(site / lib) if "ext" not in name and "tensor" not in name)
    record(site, "nvidia_cudnn_cu12-9.10.2.21", [f"{lib}/{name}" for name in names])
    for consumer, need in (("torch-2.8", "nvidia-cudnn-cu12==9.10.2.21"), ("jax-1", "nvidia-cudnn-cu13>=9")):
        write_metadata(site / f"{consumer}.dist-info", [need])
    found = doctor.diagnose(site, run=False)
    unowned = [each for each in found.findings if each.code == "unowned-library"]
    assert len(unowned) == 2
    assert found.commands == ()
    assert all(each.fix.startswith("use separate environments") for each in unowned)


@pytest.mark.parametrize("needs", ["nvidia-cudnn-cu12==9.10.2.21", "nvidia-cudnn-cu13>=9.12"])
def test_a_folder_without_a_python_gets_another_version(site: Path, needs: str) -> None:
    lib = "nvidia/cudnn/lib"
    record(site, "nvidia_cudnn_cu12-9.28.0.42", [f"{lib}/{name}" for name in os.listdir(site / lib)])
    write_metadata(site / "x-1.dist-info", [needs])
    commands = doctor.diagnose(site, run=False).commands
    assert needs in commands[0]
    assert any(f"rm -rf {site}/nvidia_cudnn_cu12-9.28.0.42.dist-info" in each for each in commands)
    assert any("nvidia-cublas" in each for each in commands) == ("cu13" in needs)


def test_a_library_that_is_loaded_first_precedes_its_effects() -> None:
    effects = [
        finding("mixed-versions", "x"),
        finding("unresolved-symbols", "x"),
        finding("load-failed", "x"),
    ]
    for code in ("preloaded", "shadowed", "memory-limit"):
        cause = finding(code, "x", fix={"advice": "y"})
        assert diagnosis.sort([*effects, cause])[0] == cause
