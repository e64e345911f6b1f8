"""benchmarks/: the layers, what is left to measure, who is timed how, and what the rows come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import conv as bench  # noqa: E402
import conv_layers as layers  # noqa: E402
import conv_report as report  # noqa: E402
import conv_rows  # noqa: E402
from harness import command as run  # noqa: E402
from harness import timing  # noqa: E402
from harness.results import Results, merged, read  # noqa: E402
from harness.text import line_of  # noqa: E402

sys.path.remove(str(BENCHMARKS))


def made_up(
    kind: str = "fp16",
    direction: str = "forward",
    half: str = "report",
    number: int = 0,
    **times: float,
) -> dict[str, Any]:
    key = f"layer {number} | {direction} | {kind}"
    facts = {"section": "rows", "id": key, "kind": kind, "direction": direction, "half": half}
    return {**facts, "times": times, "first_ms": {}, "errors": {}}


# --- the workload ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("x64x3x224x224 w64x3x7x7 s2 p3", (64, 64, 112, 112)),
        ("x1x1024x14x14 w2048x1024x1x1 s2", (1, 2048, 7, 7)),
        ("x64x960x7x7 w960x1x3x3 p1 g960", (64, 960, 7, 7)),
        ("x64x512x14x14 w512x512x3x3 p1", (64, 512, 14, 14)),
        ("x64x1024x14x14 w1024x32x3x3 s2 p1 g32", (64, 1024, 7, 7)),
        ("x8x2048x33x33 w256x2048x3x3 p18 d18", (8, 256, 33, 33)),
        ("x8x3x16x112x112 w64x3x3x7x7 s1x2x2 p1x3x3", (8, 64, 16, 56, 56)),
        ("x8x256x4x14x14 w512x256x1x1x1 s2", (8, 512, 2, 7, 7)),
    ],
)
def test_layers_have_the_output_shapes_of_their_networks(name: str, y: tuple[int, ...]) -> None:
    assert {layer.name: layer.y for layer in layers.layers()}[name] == y


def test_shards_are_disjoint_and_complete() -> None:
    everything = layers.rows()
    parts = [layers.rows(shard=(k, 7)) for k in range(1, 8)]
    assert len({row.id for row in everything}) == len(everything) == 89 * 3 * 6
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in everything)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({row.kind for row in parts[0][:40]}) == 6  # mixed, not in the order of a table


# --- what is left to measure -------------------------------------------------------------------------------


def test_results_skip_a_truncated_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = json.dumps(made_up(number=1, guess=1.0))
    path.write_text(f"{whole}\n{whole[:40]}")
    results = Results(path)
    assert [record["id"] for record in results.records] == ["layer 1 | forward | fp16"]
    results.add(made_up(number=2, guess=1.0))
    assert len(Results(path).records) == 2


# --- the run -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare", lambda warm_up: None)
    monkeypatch.setattr(run, "about", lambda: {"section": "about", "id": "now", "device": "none"})
    monkeypatch.setattr(run, "lost_context", lambda: "")


def measured(row: Any, wanted: Any) -> dict[str, Any]:
    return conv_rows.facts(row) | {"times": dict.fromkeys(wanted, 40.0)}


@pytest.mark.usefixtures("no_gpu")
def test_benchmark_stops_at_its_time_limit_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    command = ["--rows", str(rows), "--json", str(whole), "--networks", "vgg16", "--kinds", "fp16"]
    monkeypatch.setattr(bench, "row_record", measured)
    bench.main([*command, "--seconds", "-1"])
    assert "27 left: run the same command again" in capsys.readouterr().out
    bench.main(command)
    out = capsys.readouterr().out
    assert "27 to measure" in out
    assert "27 rows, 0 fused" in out
    assert len(read(whole)) == 28
    bench.main(command)
    assert capsys.readouterr().out.startswith("0 to measure, 29 records are there already")


# --- who is timed how --------------------------------------------------------------------------------------


def times_of(monkeypatch: pytest.MonkeyPatch, **times: Any) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Race contenders that take given times; a list is gone through loop by loop, an error is raised."""
    seen: list[tuple[str, str]] = []

    def at_home(contender: Any, work: Callable[..., float], *arguments: Any) -> float:
        name = contender.call
        seen.append((name, work.__name__))
        one = times[name]
        if isinstance(one, Exception):
            raise one
        return float(one.pop(0) if isinstance(one, list) else one)

    monkeypatch.setattr(timing, "at_home", at_home)
    monkeypatch.setattr(timing, "lost_context", lambda: "")
    row = layers.rows()[0]
    contenders = {name: timing.Contender(name) for name in times}
    record = timing.race(
        conv_rows.facts(row), contenders, 4, first=conv_rows.FIRST_CALLS, limit=report.ROW_LIMIT
    )
    return record, seen


def test_race_measures_contenders_alternately(monkeypatch: pytest.MonkeyPatch) -> None:
    record, seen = times_of(monkeypatch, torch_benchmark=10, torch=12, guess=9, time=8)
    assert record["times"] == {"torch_benchmark": 10, "torch": 12, "guess": 9, "time": 8}
    assert [name for name, work in seen if work == "first_call"] == [
        "torch_benchmark",
        "torch",
        "time",
        "guess",
    ]
    loops = [name for name, work in seen if work == "loop"]
    assert loops == list(conv_rows.CONTENDERS) * (1 + timing.LOOPS)
    assert (record["calls"], record["loops"]) == (188, 7)
    assert "remeasured" not in record


def test_race_continues_when_a_contender_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    record, seen = times_of(monkeypatch, torch_benchmark=10, guess=9, time=ValueError("no way"))
    assert record["errors"] == {"time": "ValueError: no way"}
    assert set(record["times"]) == set(record["first_ms"]) == {"torch_benchmark", "guess"}
    assert [name for name, _ in seen].count("time") == 1
    record, _ = times_of(monkeypatch, guess=ValueError("no"), time=ValueError("way"))
    assert record["times"] == {}
    assert "time: ValueError: way; guess: ValueError: no" in line_of(record)


# --- what other benchmarks share ---------------------------------------------------------------------------


# --- the report --------------------------------------------------------------------------------------------


def bar(records: list[dict[str, Any]], name: str) -> Any:
    return next(one for one in report.bars(records) if one.name.startswith(name))


def test_bars_separate_kernel_bound_rows() -> None:
    rows = [
        made_up(number=1, torch_benchmark=100, time=90),
        made_up(number=2, torch_benchmark=50, time=55) | {"remeasured": [1.0, 0.9, 1.2]},
        made_up(number=3, torch_benchmark=10, time=9),
        made_up(number=5, torch_benchmark=40, time=20),  # whose host takes long
        made_up("fp32", number=4, torch_benchmark=100, time=99),
    ]
    found = bar(rows, "time / torch, kernel-bound, fp16")
    assert (found.value, found.count, found.verdict) == (pytest.approx(0.9**0.5), 2, "PASS")
    strict = bar(rows, "time / torch, kernel-bound, strict")
    assert (strict.value, strict.verdict) == (0.99, "MISSED by 10.0 %")
    worst = bar(rows, "time / torch, the worst")
    assert (worst.value, worst.verdict, worst.detail) == (1.0, "PASS", "0 above")
    rest = bar(rows, "time / torch, the rest")
    assert (rest.value, rest.count, rest.verdict) == (pytest.approx(0.45**0.5), 2, "PASS")
    assert bar(rows, "time / torch, kernel-bound, bf16").verdict == "NOT MEASURED"


def test_merged_shards_read_as_their_rows(tmp_path: Path) -> None:
    less, more = made_up(number=1, guess=1.0), made_up(number=1, guess=2.0, time=1.0)
    assert merged([more, less]) == [more]
    assert merged([less, more]) == [more]
    records = [{"section": "about", "id": "now", "device": "made up"}, more, made_up(number=2, guess=1.0)]
    report.write_whole(tmp_path / "whole.json", records)
    assert read(tmp_path / "whole.json") == records
    whole = json.loads((tmp_path / "whole.json").read_text())
    assert whole["about"] == [{"device": "made up"}]
    assert {one["verdict"] for one in whole["bars"]} >= {"NOT MEASURED"}


def test_report_command_needs_no_torch(tmp_path: Path) -> None:
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for number, path in enumerate(paths):
        path.write_text(json.dumps(made_up(number=number, torch_benchmark=80, time=60)) + "\n")
    command = [sys.executable, "-W", "error", "-X", "importtime", str(BENCHMARKS / "conv_report.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(
        [*command, *map(str, paths), "--json", str(tmp_path / "whole.json")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 rows, 0 fused\n")
    assert "PASS                0.750 <= 0.98" in done.stdout
    assert "torch" not in done.stderr
    assert len(read(tmp_path / "whole.json")) == 2
