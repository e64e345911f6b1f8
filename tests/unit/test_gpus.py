"""The descriptions of GPUs that the package has, and the sources of their numbers."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cudnn_ct.cli import main
from cudnn_ct.cli.offline import read_gpu
from cudnn_ct.graph.gpus import description_of, is_derived
from cudnn_ct.graph.offline import name_of_description
from cudnn_doctor import main as doctor
from cudnn_doctor.read import files as _files
from cudnn_doctor.read import gpus as _gpus
from cudnn_doctor.read.gpus import capabilities

LATER = {"memoryBusWidth", "smCountOrigin", "oversizedSharedMemoryPerBlock"}  # keys that 9.19 does not write
DERIVED = [name for name in capabilities() if is_derived(name)]


def sources_of(name: str) -> dict[str, str]:
    """Return where each number of a derived description comes from."""
    table: dict[str, Any] = json.loads(_files.resource("cudnn_doctor/read/gpus.json"))
    row, limits, assumed = table["derived"][name], table["capabilities"], table["assumed"]
    limited = (*limits["all"], *limits[str(row["deviceVer"])], "deviceVer")
    return {
        **dict.fromkeys(assumed["values"], assumed["source"]),
        **dict.fromkeys(limited, limits["source"]),
        **row["sources"],
    }


def test_only_the_h200_was_recorded() -> None:
    assert set(capabilities()) - set(DERIVED) == {"h200"}
    assert {750, 800, 860, 890, 900, 1000, 1200} == {description_of(name)["deviceVer"] for name in DERIVED}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_description_has_the_keys_of_the_recorded_one_and_a_source_for_each(name: str) -> None:
    found: dict[str, Any] = description_of(name)
    assert set(found) == {*description_of("h200"), *LATER}
    sources = sources_of(name)
    assert set(sources) == set(found)
    own = (
        "multiProcessorCount",
        "l2CacheSize",
        "totalGlobalMem",
        "maxSharedMemoryPerBlockOptin",
        "deviceName",
    )
    assert all("https://" in sources[key] for key in own)
    for key, value in description_of("h200").items():
        assert type(found[key]) is type(value), key


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_description_is_consistent(name: str) -> None:
    found = description_of(name)
    shared = found["maxSharedMemoryPerBlockOptin"] + found["reservedSharedMemoryPerBlock"]
    assert shared % 1024 == 0
    assert found["maxSharedMemoryPerBlock"] < shared <= 228 * 1024
    assert found["maxThreadsPerBlock"] <= found["maxThreadsPerSM"]
    assert found["totalGlobalMem"] > 10**10
    assert name_of_description(found).endswith(f"{found['deviceVer'] // 10 / 10}")


def test_descriptions_are_copies() -> None:
    description_of("a100")["deviceName"] = "changed"
    assert description_of("a100")["deviceName"] == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((name, name) for name in capabilities()),
        *(("H200", "h200"), ("NVIDIA H200", "h200"), ("RTX 4090", "rtx4090"), ("Tesla T4", "t4")),
        *(("9.0", "h200"), ("90", "h200"), ("sm_90a", "h200"), (" 12.0", "rtx5090"), ("compute_75", "t4")),
    ],
)
def test_gpu_is_found_by_name_and_by_compute_capability(text: str, name: str) -> None:
    arch = description_of(name)["deviceVer"] // 10
    assert _gpus.parse(text) == _gpus.Gpu(arch, name)
    assert _gpus.described([text]) == [name]
    assert doctor.capabilities(text) == (arch,)
    assert read_gpu(text) == description_of(name)


def test_gpus_are_listed_in_one_text_or_in_several(tmp_path: Path) -> None:
    file = tmp_path / "a,b.json"
    file.write_text(json.dumps(description_of("b200")))
    assert _gpus.described(["h200,T4", "9.0", file]) == ["h200", "t4", str(file)]
    assert doctor.parse(["--gpu", "h200,t4", "--gpu=10.0"]).gpu == (90, 75, 100)
    with pytest.raises(ValueError, match="one GPU is needed: got 'h200,t4'"):
        read_gpu("h200,t4")


def test_doctor_reads_the_compute_capability_of_a_description(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(description_of("b200")))
    assert doctor.capabilities(str(file)) == (100,)
    file.write_text('{"deviceVer": "10"}')
    with pytest.raises(argparse.ArgumentTypeError, match="is not a description of a device"):
        doctor.capabilities(str(file))


def test_unknown_gpu_is_one_error_with_the_choices_in_all_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.touch()
    error = (
        "unknown GPU: got 'h20', expected one of h200, t4, a100, a10, l4, rtx4090, h100, b200, rtx5090, a "
        "compute capability such as 9.0, or a file of `cudnn-ct device --export`; did you mean h200?"
    )
    with pytest.raises(ValueError, match="^" + re.escape(error) + "$"):
        read_gpu("h20")
    with pytest.raises(SystemExit):
        doctor.parse(["--gpu", "h20"])
    assert error in capsys.readouterr().err
    for line in (
        "algorithms --x 1,3,8,8 --w 4,3,3,3 --gpu h20",
        f"supports {program} --gpu h20",
        f"compile {program} --gpu h20 -o {tmp_path}/plans",
    ):
        ran = CliRunner().invoke(main, line.split())
        assert ran.exit_code == 2
        assert error in ran.stderr
    with pytest.raises(ValueError, match=r"compute capability 5\.0 is described: got '50', expected"):
        read_gpu("50")
    assert doctor.capabilities("50") == (50,)  # which asks for code alone


def test_gpus_of_the_command_line_replace_those_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.cudnn-doctor]\ngpu = ["h200", "7.5"]\n')
    monkeypatch.chdir(tmp_path)
    assert doctor.parse([]).gpu == (90, 75)
    assert doctor.parse(["--gpu", "b200"]).gpu == (100,)
