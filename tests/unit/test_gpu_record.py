"""tools/gpu_record.py: when a record counts, and what the pytest option writes."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_judge_accepts_a_clean_record_of_these_sources(record: Path, package: Path) -> None:
    good, verdict = gpu_record.judge(record, package)
    assert good
    assert verdict == (
        "the GPU record is of the present sources: NVIDIA H200, cuDNN 9.19.0, 2026-11-20T12:00:00Z, "
        "312 passed, 0 failed, 4 skipped, 6,000 calls of the oracle"
    )


def test_judge_rejects_a_record_when_a_source_changed(record: Path, package: Path) -> None:
    table = package / "sub" / "table.toml"
    table.write_text("b = 3\n")
    assert not gpu_record.judge(record, package)[0]
    table.write_text("b = 2\n")
    assert gpu_record.judge(record, package)[0]
    table.rename(table.with_name("other.toml"))
    assert not gpu_record.judge(record, package)[0]


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
def test_judge_rejects_a_record_with_failures_or_too_few_calls(
    change: dict[str, object], says: str, record: Path, package: Path
) -> None:
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    good, verdict = gpu_record.judge(record, package)
    assert not good
    assert says in verdict


def test_write_creates_a_record_that_judge_reads(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# --- the option of pytest ----------------------------------------------------------------------------------
