"""Wheels of cuDNN whose files are gone, and the commands that install them again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cudnn_ct import doctor
from tests.elf_files import make_cudnn, make_jit
from tests.unit.test_doctor_leftovers import site as site
from tests.unit.test_doctor_several import record


def wheel(site: Path, package: str = "nvidia_cudnn_jit_cu12", version: str = "9.27.0") -> Path:
    """Write a wheel with its RECORD, and return the folder of its libraries."""
    folder = site / ("nvidia/cudnn_jit/lib" if "jit" in package else "nvidia/cudnn/lib")
    (make_jit if "jit" in package else make_cudnn)(folder, version)
    record(site, f"{package}-{version}.42", sorted(str(path.relative_to(site)) for path in folder.iterdir()))
    return folder


def again(site: Path, pin: str) -> str:
    return f"{site.parents[2]}/bin/python3.11 -m pip install --force-reinstall --no-deps {pin}"


@pytest.mark.parametrize("package", ["nvidia-cudnn-cu12", "nvidia-cudnn-jit-cu12"])
def test_diagnose_repairs_a_wheel_when_its_libraries_are_gone(site: Path, package: str) -> None:
    shutil.rmtree(wheel(site, package.replace("-", "_")))
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.findings[0].code == "missing-library"
    assert found.exit_code() == 1
    assert found.commands[0] == again(site, f"{package}==9.27.0.42")


def test_diagnose_warns_of_a_jit_wheel_without_libraries_when_another_cudnn_exists(site: Path) -> None:
    shutil.rmtree(wheel(site))
    wheel(site, "nvidia_cudnn_cu12", "9.28.0")
    found = doctor.diagnose(site.parents[2], run=False)
    (lost,) = (each for each in found.findings if each.code == "missing-library")
    assert lost.severity == doctor.Severity.WARNING


@pytest.mark.parametrize("contents", [b"", None])
def test_diagnose_reads_the_version_of_the_wheel_when_no_library_has_it(
    site: Path, contents: bytes | None
) -> None:
    graph = wheel(site) / "libcudnn_graph.so.9"
    graph.unlink()
    if contents is not None:
        graph.write_bytes(contents)
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.sets[0].version == (9, 27, 0)
    codes = [each.code for each in found.findings]
    assert codes[0] == ("missing-library" if contents is None else "damaged-library")
    assert "missing-nvrtc" not in codes  # needed by older versions only
    assert found.commands == (again(site, "nvidia-cudnn-jit-cu12==9.27.0.42"),)


def test_diagnose_reports_a_jit_wheel_without_record(site: Path) -> None:
    wheel(site)
    (site / "nvidia_cudnn_jit_cu12-9.27.0.42.dist-info/RECORD").write_text("")
    found = doctor.diagnose(site.parents[2], run=False)
    assert "broken-record" in {each.code for each in found.findings}
