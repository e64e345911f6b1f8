"""Records of a GPU: when they count, how they are written, and which GPU a process of the tests uses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.maintainers import TOOLS, tool
from tests.spread import rotated, use_gpu

gpu_record = tool("gpu_record")

DEVICE = {"device": "NVIDIA H200", "driver": "580.65.06", "cuda": "13.0", "cudnn": "9.19.0"}
COUNTS = {"passed": 312, "failed": 0, "skipped": 4}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "pkg"
    (root / "sub").mkdir(parents=True)
    (root / "__init__.py").write_text("a = 1\n")
    (root / "sub" / "table.toml").write_text("b = 2\n")
    return root


@pytest.fixture
def record(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_record, "device_facts", lambda: DEVICE)
    path = tmp_path / "gpu_record.json"
    gpu_record.write(path, COUNTS, [], gpu_record.hash_sources(package))
    monkeypatch.setattr(gpu_record, "replays_are_on", lambda: False)
    gpu_record.write(path, COUNTS | {"passed": 311}, [], gpu_record.hash_sources(package))
    monkeypatch.undo()
    change(path, oracle_calls=6000, oracle_seeds=[1])
    return path


def change(record: Path, **facts: Any) -> None:
    record.write_text(json.dumps(json.loads(record.read_text()) | facts))


@pytest.mark.parametrize(("replays", "counted"), [(True, (624, 311)), (False, (312, 623))])
def test_further_shards_add_to_the_counts(
    record: Path, package: Path, monkeypatch: pytest.MonkeyPatch, replays: bool, counted: tuple[int, int]
) -> None:
    monkeypatch.setenv(gpu_record.MODE, "add")
    monkeypatch.setattr(gpu_record, "replays_are_on", lambda: replays)
    gpu_record.write(record, COUNTS, [], gpu_record.hash_sources(package))
    facts = gpu_record.read(record)
    assert (facts["passed"], facts["without_replays"]["passed"]) == counted
    with pytest.raises(ValueError, match="belongs to other sources"):
        gpu_record.write(record, COUNTS, [], "another hash")


@pytest.mark.parametrize("replays", [True, False])
def test_tests_that_failed_run_again(
    record: Path, package: Path, monkeypatch: pytest.MonkeyPatch, replays: bool
) -> None:
    sources = gpu_record.hash_sources(package)
    wrong = ["tests/gpu/test_a.py::test_b[1]", "tests/gpu/test_c.py::test_d"]
    monkeypatch.setattr(gpu_record, "device_facts", lambda: DEVICE)
    monkeypatch.setattr(gpu_record, "replays_are_on", lambda: replays)
    gpu_record.write(record, {"passed": 10, "failed": 2, "skipped": 1}, wrong, sources)
    commands: list[tuple[list[str], str | None]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> Any:
        commands.append((command[3:5], env.get("CUDNN_CT_REPLAY")))
        monkeypatch.setenv(gpu_record.MODE, env[gpu_record.MODE])
        gpu_record.write(record, {"passed": 1, "failed": 1, "skipped": 0}, wrong[1:], sources)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(gpu_record.subprocess, "run", run)
    assert gpu_record.main(["--run", "again", "--record", str(record)]) == 1
    assert commands == [(wrong, None if replays else "0")]
    facts = gpu_record.read(record)
    part = facts if replays else facts["without_replays"]
    assert [part[key] for key in (*gpu_record.COUNTS, "failures")] == [11, 1, 1, wrong[1:]]
    with pytest.raises(ValueError, match="1 tests had failed, and 2 ran again"):
        gpu_record.write(record, {"passed": 2, "failed": 0, "skipped": 0}, [], sources)


def test_judge_accepts_a_clean_record_of_these_sources(record: Path, package: Path) -> None:
    good, verdict = gpu_record.judge(record, package)
    assert good
    assert verdict.startswith("the GPU record belongs to the present sources: NVIDIA H200, cuDNN 9.19.0, 20")
    assert verdict.endswith(
        "312 passed, 0 failed, 4 skipped, 311 passed without replays, 6,000 calls of the oracle"
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
    ("facts", "reason"),
    [
        ({"failed": 1}, "has failures"),
        ({"passed": 0}, "no test that ran"),
        ({"without_replays": COUNTS | {"failed": 1}}, "has failures"),
        ({"without_replays": COUNTS | {"passed": 0}}, "no run without replays"),
        ({"sources": "0" * 64}, "other sources"),
        ({"oracle_findings": 1}, "findings of the oracle"),
        ({"oracle_calls": 4_999}, "fewer than 5,000 calls"),
    ],
)
def test_judge_rejects_a_record_with_failures_or_too_few_calls(
    facts: dict[str, object], reason: str, record: Path, package: Path
) -> None:
    change(record, **facts)
    good, verdict = gpu_record.judge(record, package)
    assert not good
    assert reason in verdict


def test_run_makes_the_parts_in_order_and_stops_at_a_failure(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that must be alone on the device are a process of their own, which may have none of a shard."""
    made: list[tuple[Any, ...]] = []
    statuses = {"--collect-only": 0, "1": 0, "0": 0}

    def run(command: list[str], env: dict[str, str], **_: object) -> Any:
        key = "--collect-only" if "--collect-only" in command else env.get("CUDNN_CT_REPLAY", "1")
        made.append((key, env.get("CUDNN_CT_WORKSPACE_LIMIT"), "-n" in command, env.get(gpu_record.MODE)))
        return SimpleNamespace(returncode=5 if command[-1] == "alone and not nightly" else statuses[key])

    monkeypatch.delenv("CUDNN_CT_WORKSPACE_LIMIT", raising=False)
    monkeypatch.delenv("CUDNN_CT_REPLAY", raising=False)
    monkeypatch.setattr(gpu_record.subprocess, "run", run)
    monkeypatch.setattr(gpu_record, "add_oracle", lambda *arguments: made.append(arguments) or 0)
    arguments = ["--record", str(record), "--jobs", "4"]
    assert gpu_record.main(["--run", *arguments, "--oracle-minutes", "1"]) == 0
    assert made == [
        ("--collect-only", None, False, None),
        *(("1", "4G", True, ""), ("1", "4G", False, "add")),
        *(("0", "4G", True, ""), ("0", "4G", False, "add")),
        (record, 1.0, 4),
    ]
    assert "GPU record" in capsys.readouterr().out
    made.clear()
    statuses["1"] = 1
    assert gpu_record.main(["--run", "oracle", "tests", *arguments]) == 1
    assert [one[0] for one in made] == ["1", "1"]
    assert "tests failed: exit status 1" in capsys.readouterr().out


@pytest.mark.parametrize(("file", "expected"), [("tests/gpu/test_conv.py", True), ("tests/unit/x.py", False)])
def test_recorder_counts_files_that_cannot_be_collected(file: str, expected: bool) -> None:
    report = pytest.CollectReport(file, "failed", None, None)
    assert conftest._of_the_tier(report) is expected


# --- the order of tests, and those that replayed something -------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3, 7, 40])
def test_each_part_of_the_tests_begins_with_its_longest(workers: int) -> None:
    items = [SimpleNamespace(nodeid=f"test_{number}") for number in range(37)]
    seconds = {f"test_{number}": number for number in (3, 20, 21, 30, 36)}
    ordered: Any = conftest.long_first(items, seconds, workers)  # type: ignore[arg-type]
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)
    begin, found = 0, []
    for worker in range(workers):  # as xdist's WorkStealingScheduling deals them
        end = begin + (len(items) - begin) // (workers - worker)
        long = [seconds[item.nodeid] for item in ordered[begin:end] if item.nodeid in seconds]
        assert long == sorted(long, reverse=True)
        assert [item.nodeid in seconds for item in ordered[begin : begin + len(long)]] == [True] * len(long)
        found += long[:1]
        begin = end
    assert workers > len(seconds) or found[0] == 36


class Hook:
    def __init__(self) -> None:
        self.gone: list[Any] = []

    def pytest_deselected(self, items: list[Any]) -> None:
        self.gone += items


def test_tests_that_replayed_nothing_do_not_run_without_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "gpu_record.json"
    ran(record, monkeypatch, "", "ab", failed="a")
    ran(record, monkeypatch, "add", "cd")
    journal = conftest.read_journal(record, replays=True)
    assert journal == {
        "a": ("failed", False), "b": ("passed", True), "c": ("passed", True), "d": ("passed", False)
    }  # fmt: skip

    hook = Hook()
    config: Any = SimpleNamespace(hook=hook)
    items: Any = [SimpleNamespace(nodeid=name) for name in "abcd"]
    conftest.leave_out_what_replayed_nothing(config, items, record)
    assert len(items) == 4  # replays are on
    monkeypatch.setattr(gpu_record, "replays_are_on", lambda: False)
    conftest.leave_out_what_replayed_nothing(config, items, record)
    assert ([item.nodeid for item in items], len(hook.gone)) == (["b", "c"], 2)
    monkeypatch.setattr(gpu_record, "hash_sources", lambda: "another hash")
    assert conftest.read_journal(record, replays=True) is None  # all tests run


def ran(record: Path, monkeypatch: pytest.MonkeyPatch, mode: str, names: str, failed: str = "") -> Any:
    """Let a recorder see tests of which "b" and "c" replay a call."""
    monkeypatch.setattr(gpu_record, "replays_are_on", lambda: True)
    monkeypatch.setenv(gpu_record.MODE, mode)
    recorder = conftest.GpuRecorder(record)
    for name in names:
        for when in ("setup", "call", "teardown"):
            told = [["replayed", True]] if name in "bc" and when == "teardown" else []
            outcome = "failed" if name in failed and when == "call" else "passed"
            report: Any = SimpleNamespace(
                nodeid=name, when=when, duration=4.0, keywords={"gpu"}, user_properties=told, outcome=outcome
            )
            recorder.pytest_runtest_logreport(report)
    return recorder


def test_long_tests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "SECONDS", tmp_path / "seconds.json")
    ran(tmp_path / "gpu_record.json", monkeypatch, "", "ad")._write_seconds()
    assert conftest.read_seconds() == dict.fromkeys("ad", 12)


def test_rest_of_an_interrupted_run_completes_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "gpu_record.json"
    monkeypatch.setattr(gpu_record, "device_facts", lambda: DEVICE)
    monkeypatch.setattr(conftest, "SECONDS", tmp_path / "seconds.json")
    ran(record, monkeypatch, "", "abc", failed="c")  # and no summary
    monkeypatch.setenv(gpu_record.MODE, gpu_record.REST)
    items: Any = [SimpleNamespace(nodeid=name) for name in "abcdef"]
    conftest.leave_out_what_ran(SimpleNamespace(hook=Hook()), items, record)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == ["d", "e", "f"]
    recorder = ran(record, monkeypatch, gpu_record.REST, "def")
    reports = [SimpleNamespace(nodeid=name, keywords={"gpu"}) for name in "def"]
    terminal: Any = SimpleNamespace(stats={"passed": reports}, write_line=lambda *_, **__: None)
    recorder.pytest_terminal_summary(terminal)
    facts = gpu_record.read(record)
    assert [facts[key] for key in (*gpu_record.COUNTS, "failures")] == [5, 1, 0, ["c"]]


def test_rest_is_a_mode_of_all_processes_of_a_part(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []

    def run(_: list[str], env: dict[str, str], **__: object) -> Any:
        modes.append(env[gpu_record.MODE])
        return SimpleNamespace(returncode=5)

    monkeypatch.setattr(gpu_record.subprocess, "run", run)
    arguments = ["--run", "tests", "without-replays", "--rest", "--record", str(record)]
    assert gpu_record.main(arguments) == 0
    assert modes == [gpu_record.REST] * 4


# --- tools/versions.py: the record of another cuDNN --------------------------------------------------------


versions = tool("versions")


def test_each_cudnn_has_a_record_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn_jit" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    commands: list[list[str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        assert env["CUDNN_CT_LIBRARY"] == str(library)
        commands.append(command[1:])
        return SimpleNamespace(stdout="9.27.0 jit\n", returncode=3 * ("--run" in command))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(versions, "RECORDS", tmp_path / "records")
    assert versions.on_gpu(tmp_path, 0.5, 8) == 3
    _, record, facts = commands
    assert str(tmp_path / "records" / "9.27.0-jit.json") in record
    more = ["--jobs", "8", "--files", *versions.FILES["jit"], "--oracle-minutes", "0.5", "--shard", "1/1"]
    assert record[-len(more) - 3 :] == [*more, "--run", "tests", "oracle"]
    assert str(tmp_path / "records" / "9.27.0-jit-facts.json") in facts


def test_a_folder_without_cudnn_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no libcudnn.so.9 below {tmp_path}"):
        versions.on_gpu(tmp_path, 1, 1)


def test_files_of_a_kind_exist() -> None:
    names = {one.stem.removeprefix("test_") for one in (TOOLS.parent / "tests" / "gpu").glob("test_*.py")}
    assert names >= {name for files in versions.FILES.values() for name in files}


# --- processes of the GPU tests begin with different GPUs --------------------------------------------------


def test_processes_have_the_gpus_in_turn() -> None:
    assert [rotated(["0", "1", "2"], process)[0] for process in range(4)] == ["0", "1", "2", "0"]
    assert rotated(["GPU-a", "GPU-b"], 1) == ["GPU-b", "GPU-a"]


@pytest.mark.parametrize(
    ("listed", "given", "expected"),
    [
        ("GPU 0: H200\nGPU 1: H200\n", None, "1,0"),
        ("GPU 0: H200\n", None, None),
        ("", None, None),
        (None, None, None),
        (None, "3,5", "5,3"),
        (None, "3", "3"),
    ],
)
def test_a_process_uses_the_gpus_that_cuda_may_use(
    listed: str | None,
    given: str | None,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if listed is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listed}'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")  # restored after the test
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    use_gpu(1)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


def test_a_process_may_see_one_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    use_gpu(4, count=1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
