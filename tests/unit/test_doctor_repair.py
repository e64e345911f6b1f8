"""The fixes that the doctor prints, run as printed by pip on small wheels: each repairs in one step."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from cudnn_ct import doctor
from cudnn_ct.doctor import Requirements
from tests.elf_files import make_cudnn

pytest.importorskip("pip")
CU12, CU13 = "nvidia_cudnn_cu12", "nvidia_cudnn_cu13"
OLD, NEW, OTHER = f"{CU12}-9.10.2.21", f"{CU12}-9.27.0.42", f"{CU13}-9.28.0.1"
TORCH, LIB = "torch-2.9.0", "nvidia/cudnn/lib"
WHEELS = {OLD: "", NEW: "", OTHER: "", TORCH: "Requires-Dist: nvidia-cudnn-cu12==9.10.2.21\n"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels: those of cuDNN have its libraries, all others only metadata."""
    folder = tmp_path_factory.mktemp("wheels")
    for label, needs in WHEELS.items():
        name, _, version = label.partition("-")
        info = f"{label}.dist-info"
        files = {f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n"}
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        files[f"{info}/METADATA"] = metadata.encode()
        if "cudnn" in name:
            without = ["ext", "engines_tensor_ir"] if label == OLD else []
            lib = make_cudnn(folder / label, version.rpartition(".")[0], without=without).parent
            files |= {f"{LIB}/{file.name}": file.read_bytes() for file in lib.iterdir()}
        record = f"{info}/RECORD,,\n" + "".join(f"{path},,{len(data)}\n" for path, data in files.items())
        with zipfile.ZipFile(folder / f"{label}-py3-none-any.whl", "w") as wheel:
            for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
                wheel.writestr(path, data)
    return folder


class Environment:
    """A virtual environment with some of the wheels, each laid over the earlier ones."""

    def __init__(self, folder: Path, wheels: Path, labels: list[str]) -> None:
        venv.create(folder, symlinks=True)
        self.folder, self.wheels = folder, wheels
        (self.site,) = folder.glob("lib/*/site-packages")
        for label in labels:
            zipfile.ZipFile(wheels / f"{label}-py3-none-any.whl").extractall(self.site)

    def fixes(self, asked: Requirements | None = None) -> dict[str, str]:
        """Return the fixes of errors and warnings by code."""
        findings = doctor.diagnose(self.folder, asked, run=False).findings
        return {each.code: each.fix for each in findings if each.severity.word != "note"}

    def run(self, command: str) -> None:
        """Run a command in the site-packages; its ``python -m pip`` installs into it, from the wheels."""
        shim = self.folder / "shim/python"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m pip --python "{self.folder}" "$@"\n')
        shim.chmod(0o755)
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_NO_CACHE_DIR": "1"}
        environ = {**os.environ, **offline, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-ec", command], cwd=self.site, env=environ, check=True)


MOVE_TORCH = "mkdir -p {0}/python3/site-packages; mv torch* {0}/python3/site-packages"
RENAME = 'for f in *.dist-info; do mv $f "~${f#?}"; done'  # as pip does before it deletes it
CONFLICT = "torch-2.9.0 needs nvidia-cudnn-cu12 ==9.10.2.21 and this check needs cudnn >=9.28"
SWITCH = "python -m pip uninstall -y nvidia-cudnn-cu12 && python -m pip install 'nvidia-cudnn-cu13<9.11'"


@pytest.mark.parametrize(
    ("labels", "damage", "code"),
    [
        ([NEW, OLD], "", "stale-metadata"),
        ([OLD, NEW], RENAME, "stale-metadata"),
        ([OLD, OTHER, TORCH], "", "two-owners"),
        ([OTHER, OLD], f"rm {LIB}/libcudnn_ops.so.9", "missing-library"),
        ([OTHER, TORCH], "", "consumer-mismatch"),
        ([NEW, TORCH], f"rm {LIB}/libcudnn_ops.so.9", "missing-library"),
        ([OLD, TORCH], f"rm -r {OLD}.dist-info {LIB}/libcudnn_ops.so.9", "missing-library"),
        ([OTHER, TORCH], MOVE_TORCH.format("../../../lib64"), "consumer-mismatch"),
        ([OTHER, TORCH], MOVE_TORCH.format("../../../other/lib"), ""),  # another environment
        ([NEW], "rm -r nvidia", "missing-library"),
        ([OTHER, OLD, TORCH], f"rm {LIB}/*", "missing-library"),
        ([NEW], f"cd {LIB}; for f in *; do cp $f $f.27.0; done; ln -s libcudnn.so.9 libcudnn.so", ""),
        ([NEW], f"echo > {NEW}.dist-info/RECORD", "broken-record"),
    ],
)
def test_fix_repairs_at_once(tmp_path: Path, wheels: Path, labels: list[str], damage: str, code: str) -> None:
    environment = Environment(tmp_path / "x y", wheels, labels)
    environment.run(damage)
    fixes = environment.fixes()
    commands = {fix.partition(", or ")[0] for fix in fixes.values() if "pip" in fix}
    assert len(commands) == (1 if code else 0)
    environment.run(fixes.get(code, "").partition(", or ")[0])
    assert environment.fixes() == {}


def test_fix_meets_all_requirements_or_names_them(tmp_path: Path, wheels: Path) -> None:
    fixes = Environment(tmp_path / "one", wheels, [NEW]).fixes(Requirements(maximum=(9, 10), cuda=13))
    assert fixes["unexpected-cuda"] == f"{SWITCH}, or change the requirement"
    fixes = Environment(tmp_path / "two", wheels, [NEW, TORCH]).fixes(Requirements(minimum=(9, 28)))
    assert fixes["unexpected-version"] == f"use separate environments: {CONFLICT}, or change the requirement"
