"""Requirements of installed packages: extras of other packages, and the CUDA that a package was built for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import packages
from cudnn_doctor.packages import Packages
from tests.doctor_sites import read
from tests.elf_files import make_cudnn

LINUX = {"sys_platform": "linux", "python_version": "3.11", "python_full_version": "3.11.0"}
PIN, CUDNN = "nvidia-cudnn-cu12==9.10.2.21", ("nvidia-cudnn-cu12", "==9.10.2.21")


def make_packages(folder: Path, metadata: Mapping[str, Sequence[str]]) -> Packages:
    """Write the metadata of packages with requirements."""
    folders = {name: folder / f"{name.replace('-', '_')}-1.0.dist-info" for name in metadata}
    for name, info in folders.items():
        write_metadata(info, metadata[name])
    return Packages({name: str(info) for name, info in folders.items()}, LINUX)


def write_metadata(folder: Path, needs: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Name: x\n" + "".join(f"Requires-Dist: {each}\n" for each in needs))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"a": [PIN]}, [CUDNN]),
        ({"a": [f"{PIN}; extra == 'x'"]}, []),
        ({"a": ["b[x]"], "b": [f"{PIN}; extra == 'x'"]}, [CUDNN]),
        ({"a": ["b[x]==1"], "b": [f"{PIN} ; extra == 'y'"]}, []),
        ({"a": ["b"], "b": [f"{PIN}; extra == 'x'"]}, []),
        ({"a": ["B.B [ y , X_1 ] (>=1)"], "b-b": [f"{PIN}; extra == 'x-1'"]}, [CUDNN]),
        ({"a": ["b[x]; sys_platform == 'win32'"], "b": [f"{PIN}; extra == 'x'"]}, []),
        ({"a": ["b[x]"], "b": ["c[y]; extra == 'x'"], "c": [f"{PIN}; 'y' == extra"]}, [CUDNN]),
        ({"a": ["b[x]"], "b": ["b[y]; extra == 'x'", f"{PIN}; extra == 'y'"]}, [CUDNN]),
        ({"a": ["b[x]", "a[z]"], "b": ["a[x]; extra == 'x'", "b[x]; extra == 'x'"]}, []),  # circles
        ({"a": ["missing[x]"]}, []),
        ({"a": ["cuda-toolkit[cublas,X_1]==2"]}, [("cuda-toolkit[cublas,x-1]", "==2")]),
        (
            {"a": ["cuda-toolkit[x]==2"], "cuda-toolkit": [f"{PIN}; extra == 'x'"]},
            [("cuda-toolkit[x]", "==2")],
        ),
        ({"a": ["cuda-toolkit[x]==1.*"], "cuda-toolkit": [f"{PIN}; extra == 'x'"]}, [CUDNN]),
        (
            {"a": ["b[x]"], "b": [f"{PIN}; (python_version > '3.9' or os_name == 'nt') and extra=='x'"]},
            [CUDNN],
        ),
        ({"a": ["b[x]"], "b": [f"{PIN}; extra == 'x' and python_full_version < '3.9'"]}, []),
    ],
)
def test_wheels_follows_extras_of_installed_packages(
    tmp_path: Path, metadata: dict[str, list[str]], expected: list[tuple[str, str]]
) -> None:
    assert list(dict.fromkeys(make_packages(tmp_path, metadata).wheels("a"))) == expected


def test_wheels_ends_for_long_chains_and_many_requirements(tmp_path: Path) -> None:
    chain = {f"p{number}": [f"p{number + 1}[x]", f"p{number + 2}[x]"] for number in range(60)}
    chain["p0"] += [f"p1[x{number}]" for number in range(2000)]
    assert len(list(make_packages(tmp_path, chain).wheels("p0"))) == 0


CONSUMERS = {
    "jax_cuda12_plugin-0.10.2": ["nvidia-cudnn-cu12<10.0,>=9.8; extra == 'with-cuda'"],
    "jax_cuda13_plugin-0.10.2": ["nvidia-cudnn-cu13<10.0,>=9.12.0.46; extra == 'with-cuda'"],
    "onnxruntime_gpu-1.22.0": ["nvidia-cudnn-cu12~=9.0; extra == 'cudnn'"],
    "onnxruntime_gpu-1.20.0": [],
    "onnxruntime_gpu-9.0": ["nvidia-cudnn-cu13~=9.0; extra == 'cudnn'"],  # a later version for CUDA 13
    "ctranslate2-4.8.5": ["numpy"],
    "tensorflow-2.21.0": ["nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == 'and-cuda'"],
    "tensorflow-2.18.0": ["nvidia-cudnn-cu12==9.3.0.75; extra == 'and-cuda'"],
}


@pytest.mark.parametrize("cuda", [12, 13])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_doctor_compares_the_cuda_of_packages_with_that_of_cudnn(
    tmp_path: Path, consumer: str, cuda: int
) -> None:
    write_metadata(tmp_path / f"{consumer}.dist-info", CONSUMERS[consumer])
    found = read(make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.27.0", cuda=cuda).parent)
    found = packages.with_needs(found, tuple(packages.needs(found)))
    told = [each.message for each in packages.check_dependents(found)]
    wanted = 13 if "cuda13" in consumer or "-9.0" in consumer else 12
    assert bool(told) == (cuda != wanted), told
    assert all(f"nvidia-cudnn-cu{wanted}" in each for each in told)


TORCH = ["cuda-toolkit[cublas,nvrtc]==13.0.2", "nvidia-cudnn-cu13==9.28.0.1"]


def make_environment(folder: Path, metadata: Mapping[str, Sequence[str]], cuda: int = 13) -> Path:
    """Write a Python, a cuDNN and the metadata of packages, and return their site-packages."""
    site = folder / "lib/python3.11/site-packages"
    make_packages(site, metadata)
    (folder / "bin").mkdir()
    (folder / "bin/python3.11").touch()
    make_cudnn(site / "nvidia/cudnn/lib", "9.28.0", cuda=cuda)
    return site


def last_command(site: Path, code: str) -> str:
    """Return the last command of the finding with a code."""
    (found,) = (each for each in doctor.diagnose(site, run=False).findings if each.code == code)
    return found.commands[-1].rpartition(" -m pip install ")[2]


def test_fix_installs_the_version_that_an_extra_pins(tmp_path: Path) -> None:
    toolkit = ["nvidia-cublas==13.1.0.3.*; extra == 'cublas'"]
    site = make_environment(tmp_path, {"torch": ["cuda-toolkit[cublas]==1.0"], "cuda-toolkit": toolkit})
    assert last_command(site, "missing-cublaslt") == "'nvidia-cublas==13.1.0.3.*'"


@pytest.mark.parametrize("others", [{}, {"cuda-toolkit": ["nvidia-cublas==1; extra == 'cublas'"]}])
def test_fix_installs_the_toolkit_that_alone_has_the_pins(
    tmp_path: Path, others: dict[str, list[str]]
) -> None:
    site = make_environment(tmp_path, {"torch": TORCH, "nvidia-cudnn-cu13": ["nvidia-cublas"], **others})
    assert last_command(site, "missing-cublaslt") == "'cuda-toolkit[cublas,nvrtc]==13.0.2'"


def test_fix_for_another_cuda_keeps_the_pins_of_its_libraries(tmp_path: Path) -> None:
    site = make_environment(tmp_path, {"torch": TORCH, "nvidia-cudnn-cu12": []}, cuda=12)
    (site / "nvidia_cudnn_cu12-1.0.dist-info/RECORD").write_text("nvidia/cudnn/lib/libcudnn.so.9,,\n")
    expected = "nvidia-cudnn-cu13==9.28.0.1 'cuda-toolkit[cublas,nvrtc]==13.0.2'"
    assert last_command(site, "consumer-mismatch") == expected


def test_fix_names_unknown_pins_where_no_pip_installs_them(tmp_path: Path) -> None:
    make_packages(tmp_path, {"torch": TORCH})
    make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.28.0", cuda=13)
    found = doctor.diagnose(tmp_path, run=False)
    (missing,) = (each for each in found.findings if each.code == "missing-cublaslt")
    assert missing.fix == "install nvidia-cublas in the version of cuda-toolkit[cublas,nvrtc]==13.0.2"
    assert missing.commands == ()


def test_packages_that_exclude_each_other_get_no_commands_of_pip(tmp_path: Path) -> None:
    site = make_environment(tmp_path, {"torch": TORCH, "nvidia-cudnn-cu13": []})
    for label in ("onnxruntime_gpu-1.22.0", "ctranslate2-4.4.0"):  # for CUDA 12, and for cuDNN 8
        write_metadata(site / f"{label}.dist-info", [])
    found = doctor.diagnose(site, run=False)
    assert {"missing-cublaslt", "consumer-mismatch"} <= {each.code for each in found.findings}
    assert any(each.fix.startswith("use separate environments: ") for each in found.findings)
    assert not any(" -m pip " in each for each in found.commands)
