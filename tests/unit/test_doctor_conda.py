"""The doctor on conda environments: a second cuDNN of pip, and requirements of packages of conda."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import conda
from tests.doctor_breakages import wrong
from tests.elf_files import make_cudnn, make_elf

PYTORCH = ["python >=3.11", "cudnn >=9.10.1.4,<10.0a0", "cuda-version >=12.9,<13"]


class Conda:
    """A conda environment without a cuDNN."""

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.site = prefix, prefix / "lib/python3.11/site-packages"
        self.site.mkdir(parents=True)
        (prefix / "bin").mkdir()
        (prefix / "bin/python3.11").touch()
        self.package("python-3.11.9-h955ad1f_0", [])
        for cuda in (12, 13):
            for name in (f"cublasLt.so.{cuda}", f"nvrtc.so.{cuda}", f"nvrtc-builtins.so.{cuda}.0"):
                (prefix / f"lib/lib{name}").write_bytes(make_elf(f"lib{name}"))

    def package(self, label: str, depends: Sequence[str]) -> None:
        """Install the metadata of a package of conda."""
        name, version, _ = label.rsplit("-", 2)
        folder = self.prefix / "conda-meta"
        folder.mkdir(exist_ok=True)
        row = {"name": name, "version": version, "depends": list(depends), "files": ["lib/x"]}
        (folder / f"{label}.json").write_text(json.dumps(row))

    def cudnn(self, version: str = "9.10.1", cuda: int = 12, folder: str = "lib") -> None:
        """Install the cuDNN of conda."""
        make_cudnn(self.prefix / folder, version, cuda=cuda, without=["ext", "engines_tensor_ir"])
        self.package(f"libcudnn-{version}.4-hf7e9902_0", ["libgcc"])
        self.package(f"cudnn-{version}.4-h99862b1_0", [f"libcudnn {version}.4 hf7e9902_0"])

    def wheel(self, version: str = "9.27.0", cuda: int = 12) -> None:
        """Install the cuDNN of pip."""
        make_cudnn(self.site / "nvidia/cudnn/lib", version, cuda=cuda)
        files = sorted((self.site / "nvidia/cudnn/lib").iterdir())
        info = self.site / f"nvidia_cudnn_cu{cuda}-{version}.1.dist-info"
        info.mkdir()
        rows = [f"{file.relative_to(self.site)},,{file.stat().st_size}\n" for file in files]
        (info / "RECORD").write_text("".join(rows))

    def python_package(self, label: str, needs: str = "") -> None:
        """Install the metadata of a package of Python."""
        folder = self.site / f"{label}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: x\nRequires-Dist: {needs}\n" if needs else "Name: x\n")

    def codes(self) -> set[str]:
        """Return the codes of errors and warnings."""
        return {code for code, _ in wrong(doctor.diagnose(self.prefix, run=False))}

    def fix(self, code: str) -> doctor.Finding:
        """Return the finding of a code."""
        findings = doctor.diagnose(self.prefix, run=False).findings
        (made,) = (each for each in findings if each.code == code)
        return made


@pytest.fixture
def env(tmp_path: Path) -> Conda:
    return Conda(tmp_path / "env")


# --- two cuDNNs --------------------------------------------------------------------------------------------


def test_doctor_accepts_one_cudnn_of_conda_or_of_pip(tmp_path: Path) -> None:
    for number, kind in enumerate(("cudnn", "wheel")):
        env = Conda(tmp_path / str(number))
        getattr(env, kind)()
        assert env.codes() == set()


@pytest.mark.parametrize("folder", ["lib", "targets/x86_64-linux/lib"])
@pytest.mark.parametrize(("version", "cuda"), [("9.27.0", 12), ("9.10.1", 12), ("9.27.0", 13)])
def test_doctor_reports_a_second_cudnn_of_pip(env: Conda, folder: str, version: str, cuda: int) -> None:
    env.cudnn(folder=folder)
    env.wheel(version, cuda)
    assert "conda-and-pip" in env.codes()
    (command,) = env.fix("conda-and-pip").commands
    assert command == f"{env.prefix}/bin/python3.11 -m pip uninstall -y nvidia-cudnn-cu{cuda}"


def test_fix_keeps_the_cudnns_that_packages_need(env: Conda) -> None:
    env.cudnn()
    env.wheel()
    env.python_package("torch-2.10.0", "nvidia-cudnn-cu12==9.27.0.1")
    assert env.fix("conda-and-pip").fix.startswith("remove that of conda, which no package needs: conda rem")
    env.package("jaxlib-0.6.0-cuda129", PYTORCH)
    found = env.fix("conda-and-pip")
    assert (found.fix, found.commands) == (
        "use separate environments: jaxlib 0.6.0 needs that of conda, torch-2.10.0 that of pip",
        (),
    )


@pytest.mark.parametrize(("cuda", "commands"), [(12, 1), (13, 0)])
def test_fix_uninstalls_the_wheel_if_that_of_conda_suits_all_packages(
    env: Conda, cuda: int, commands: int
) -> None:
    env.cudnn(cuda=cuda)
    env.wheel(cuda=12)
    env.python_package("onnxruntime_gpu-1.22.0", "nvidia-cudnn-cu12~=9.0; extra == 'cudnn'")
    assert len(env.fix("conda-and-pip").commands) == commands


# --- requirements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depends", "good"),
    [
        (PYTORCH, True),
        (["cudnn"], True),
        (["cudnn >=9.8,<10.0a0"], True),
        (["cudnn 9.10.*"], True),
        (["cudnn 9.10.1.4 h99862b1_0"], True),
        (["cudnn =9.10"], True),
        (["cudnn 9"], True),
        (["cudnn >=8,<9|>=9.5"], True),
        (["libcudnn >=9.10.1.4,<10.0a0"], True),
        (["cudnn !=9.8.*"], True),
        (["cudnn >=9.8", "cuda-version >=12,<14"], True),
        (["cudnn >=9.12,<10.0a0"], False),
        (["cudnn 9.8.*"], False),
        (["cudnn ==9.8.0.87"], False),
        (["cudnn =9.1"], False),
        (["cudnn >=8,<9.0a0"], False),
        (["libcudnn >=9.20"], False),
        (["cudnn >=9.8", "cuda-version >=13,<14"], False),
        (["cudnn", "cuda-version 11.8.*"], False),
    ],
)
def test_doctor_reads_the_requirements_of_packages_of_conda(
    env: Conda, depends: list[str], good: bool
) -> None:
    env.cudnn()
    env.package("pytorch-2.7.1-cuda129_mkl", depends)
    assert env.codes() == (set() if good else {"consumer-mismatch"})
    if not good:
        found = env.fix("consumer-mismatch")
        assert found.message.startswith("pytorch 2.7.1 needs cudnn ")
        assert found.fix.startswith("install cudnn ")
        assert found.commands == ()


def test_doctor_reports_that_the_cudnn_of_conda_is_gone(env: Conda) -> None:
    env.wheel()
    env.package("pytorch-2.7.1-cuda129_mkl", PYTORCH)
    assert env.codes() == {"consumer-mismatch"}
    assert env.fix("consumer-mismatch").message.endswith("not cuDNN 9.27.0 for CUDA 12 of pip")


def test_doctor_compares_packages_of_pip_with_the_cudnn_of_conda(env: Conda) -> None:
    env.cudnn(cuda=13)
    env.python_package("ctranslate2-4.8.5")
    assert env.codes() == {"consumer-mismatch"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"depends": 3, "cudnn": 1}', '{"depends": ["cudnn"]}', "\udcff"]
)
def test_doctor_ignores_damaged_metadata(env: Conda, text: str) -> None:
    env.cudnn()
    (env.prefix / "conda-meta/x-1-0.json").write_text(text, errors="surrogateescape")
    assert env.codes() == set()


def test_folders_of_another_environment_do_not_count(env: Conda, tmp_path: Path) -> None:
    env.cudnn()
    other = Conda(env.prefix / "envs/other")
    other.wheel()
    assert other.codes() == set()
    assert conda.records.prefix_of(str(other.site)) == str(other.prefix)
