"""tools/gpu_record.py: when a record counts, and what the pytest option writes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "gpu_record.py"

if not TOOL.is_file():
    pytest.skip("tools/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(TOOL.parent))
import gpu_record  # noqa: E402

sys.path.remove(str(TOOL.parent))

GOOD = {
    "date": "2026-11-20T12:00:00Z", "device": "NVIDIA H200", "driver": "580.65.06", "cuda": "13.0",
    "cudnn": "9.19.0", "passed": 312, "failed": 0, "skipped": 4,
    "oracle_calls": 6000, "oracle_seeds": [1], "oracle_findings": 0,
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "pkg"
    (root / "sub").mkdir(parents=True)
    (root / "__init__.py").write_text("a = 1\n")
    (root / "sub" / "table.toml").write_text("b = 2\n")
    return root


@pytest.fixture
def record(tmp_path: Path, package: Path) -> Path:
    path = tmp_path / "gpu_record.json"
    path.write_text(json.dumps({**GOOD, "sources": gpu_record.hash_sources(package)}))
    return path


def test_a_clean_record_of_these_sources_is_good(record: Path, package: Path) -> None:
    good, verdict = gpu_record.judge(record, package)
    assert good
    assert verdict == (
        "the GPU record is of the present sources: NVIDIA H200, cuDNN 9.19.0, 2026-11-20T12:00:00Z, "
        "312 passed, 0 failed, 4 skipped, 6,000 calls of the oracle"
    )


def test_any_change_to_the_sources_is_seen(record: Path, package: Path) -> None:
    table = package / "sub" / "table.toml"
    table.write_text("b = 3\n")
    assert not gpu_record.judge(record, package)[0]
    table.write_text("b = 2\n")
    assert gpu_record.judge(record, package)[0]
    table.rename(table.with_name("other.toml"))
    assert not gpu_record.judge(record, package)[0]


def test_a_new_file_is_seen_and_a_cache_is_not(record: Path, package: Path) -> None:
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"1")
    (package / ".notes").write_text("1")
    assert gpu_record.judge(record, package)[0]
    (package / "new.py").write_text("")
    assert not gpu_record.judge(record, package)[0]


def test_bytes_that_move_between_files_are_seen(tmp_path: Path) -> None:
    for name, first, second in (("one", "ab", "c"), ("two", "a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(first)
        (tmp_path / name / "b.py").write_text(second)
    assert gpu_record.hash_sources(tmp_path / "one") != gpu_record.hash_sources(tmp_path / "two")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"failed": 1}, "has failures"),
        ({"passed": 0}, "no test that ran"),
        ({"sources": "0" * 64}, "other sources"),
        ({"oracle_findings": 1}, "findings of the oracle"),
        ({"oracle_calls": 4_999}, "fewer than 5,000 calls"),
    ],
)
def test_what_does_not_count(change: dict[str, object], says: str, record: Path, package: Path) -> None:
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    good, verdict = gpu_record.judge(record, package)
    assert not good
    assert says in verdict


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "is not there"), ("{", "Expecting"), ("[]", "lacks date"), (json.dumps(GOOD), "lacks sources")],
)
def test_what_is_no_record(content: str | None, says: str, tmp_path: Path, package: Path) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content)
    good, verdict = gpu_record.judge(path, package)
    assert not good
    assert verdict.startswith("no GPU record")
    assert says in verdict
    assert "\n" not in verdict


def test_write_and_read_back(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {key: str(GOOD[key]) for key in ("device", "driver", "cuda", "cudnn")}
    monkeypatch.setattr(gpu_record, "device_facts", lambda: names)
    path = tmp_path / "new.json"
    gpu_record.write(path, {"passed": 3, "failed": 0, "skipped": 1}, gpu_record.hash_sources(package))
    facts = json.loads(path.read_text())
    assert tuple(facts) == gpu_record.KEYS
    assert "fewer than 5,000 calls" in gpu_record.judge(path, package)[1]
    path.write_text(json.dumps(facts | {"oracle_calls": 5_000}))
    assert gpu_record.judge(path, package)[0]


def test_add_oracle_counts_calls_seeds_and_findings(
    tmp_path: Path, record: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_record, "hash_sources", lambda *_: json.loads(record.read_text())["sources"])

    def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        assert command[1:5] == ["-m", "tests.oracle", "--minutes", "2.5"]
        result = {"seed": 7, "calls": 1000, "outcomes": {}, "findings": [[3, "conv(...)", "y differs"]]}
        Path(command[-1]).write_text(json.dumps(result))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(gpu_record.subprocess, "run", run)
    assert gpu_record.add_oracle(record, 2.5, 3) == 1
    facts = json.loads(record.read_text())
    assert [facts[key] for key in gpu_record.ORACLE_KEYS] == [7000, [1, 7], 1]


def test_add_oracle_rejects_a_record_of_other_sources(record: Path, capsys: pytest.CaptureFixture) -> None:
    assert gpu_record.add_oracle(record, 1, 1) == 1
    assert "belongs to other sources" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first_line", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39", "535.54.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("nothing", "unknown"),
        ("", "unknown"),
    ],
)
def test_driver_release(first_line: str, release: str, tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(first_line)
    assert gpu_record.driver_release(path) == release


def test_no_driver_no_release(tmp_path: Path) -> None:
    assert gpu_record.driver_release(tmp_path / "none") == "unknown"


@pytest.mark.parametrize("check", [True, False])
def test_command_line(check: bool, tmp_path: Path) -> None:
    """Run it as CI does: with the standard library alone (-S leaves site-packages out)."""
    command = [sys.executable, "-S", str(TOOL), "--record", str(tmp_path / "none.json")]
    done = subprocess.run(command + ["--check"] * check, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if check else 0)
    assert done.stdout.startswith("no GPU record")
    assert len(done.stdout.splitlines()) == 1
    assert not done.stderr


# --- the option of pytest ----------------------------------------------------------------------------------

SUITE = """
    import pytest
    def test_good(): pass
    def test_bad(): assert False
    def test_away(): pytest.skip("not today")
    @pytest.fixture
    def broken(): raise RuntimeError
    def test_broken(broken): pass
"""


def run_suite(folder: Path, *options: str, reason: str = "") -> subprocess.CompletedProcess[str]:
    """Run a small GPU tier under our conftest, with stand-ins for `available` and `device_facts`."""
    gpu = folder / "tests" / "gpu"
    gpu.mkdir(parents=True)
    (gpu / "test_small.py").write_text(textwrap.dedent(SUITE))
    (gpu.parent / "test_other.py").write_text("def test_elsewhere(): pass\n")
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    stand_ins = f"""
GPU_RECORD_TOOL = Path({str(TOOL)!r})
why_not_on_gpu = lambda: {reason!r}
_real_tool = _gpu_record_tool
def _gpu_record_tool():
    tool = _real_tool()
    tool.device_facts = lambda: dict(device="D", driver="1.2", cuda="13.0", cudnn="9.0.0")
    return tool
"""
    (gpu.parent / "conftest.py").write_text(conftest + stand_ins)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--strict-markers"]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)


def test_the_option_records_the_gpu_tier_alone(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--gpu-record")
    facts = json.loads((tmp_path / "tests" / "gpu_record.json").read_text())
    assert (facts["passed"], facts["failed"], facts["skipped"]) == (1, 2, 1)
    assert facts["sources"] == gpu_record.hash_sources()
    assert "1 passed, 2 failed, 1 skipped" in done.stdout


def test_the_option_takes_a_path(tmp_path: Path) -> None:
    run_suite(tmp_path, f"--gpu-record={tmp_path / 'x.json'}", "-k", "good")
    assert json.loads((tmp_path / "x.json").read_text())["failed"] == 0


def test_a_forgotten_equals_sign_is_told(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--gpu-record", "tests/gpu")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "mind the =" in done.stderr


def test_without_a_gpu_the_tier_skips_with_one_reason_and_nothing_is_recorded(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--gpu-record", reason="no driver: libcuda.so.1 was not found")
    assert done.returncode == 0
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skips) == 1
    assert skips[0].startswith("SKIPPED [4]")
    assert skips[0].endswith("no driver: libcuda.so.1 was not found")
    assert "no GPU record written: no driver" in done.stdout
    assert not (tmp_path / "tests" / "gpu_record.json").exists()
