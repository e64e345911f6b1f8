"""benchmarks/: the layers, what is left to measure, who is timed how, and what the rows come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import conv as bench  # noqa: E402
import conv_cache  # noqa: E402
import conv_layers as layers  # noqa: E402
import conv_report as report  # noqa: E402
import conv_rows  # noqa: E402
from harness import command as run  # noqa: E402
from harness import timing  # noqa: E402
from harness.figures import Limit, ranked  # noqa: E402
from harness.operands import strides_of  # noqa: E402
from harness.results import Results, merged, read, room_for, write_whole  # noqa: E402
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


def test_each_convolution_is_there_once() -> None:
    found = layers.layers()
    assert len({layer[1:] for layer in found}) == len({layer.name for layer in found}) == len(found) == 89
    assert Counter(network for layer in found for network in layer.networks) == {
        "resnet50": 23,
        "resnet50-b1": 23,
        "mobilenetv2": 10,
        "vgg16": 9,
        "resnext50": 7,
        "deeplabv3": 6,
        "r3d18": 11,
    }


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
def test_layers_are_those_of_the_networks(name: str, y: tuple[int, ...]) -> None:
    assert {layer.name: layer.y for layer in layers.layers()}[name] == y


def test_shards_are_disjoint_and_together_everything() -> None:
    everything = layers.rows()
    parts = [layers.rows(shard=(k, 7)) for k in range(1, 8)]
    assert len({row.id for row in everything}) == len(everything) == 89 * 3 * 6
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in everything)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({row.kind for row in parts[0][:40]}) == 6  # mixed, not in the order of a table


def test_selections() -> None:
    some = {"networks": ["vgg16"], "directions": ["forward"], "kinds": ["fp64"]}
    rows = layers.rows(**some)
    assert len(rows) == 9
    assert {(row.direction, row.kind.name, row.layer.networks) for row in rows} == {
        ("forward", "fp64", ("vgg16",))
    }
    assert layers.rows(**some, every=4) == rows[::4]
    assert layers.rows(**some, every=2, shard=(2, 2)) == rows[::2][1::2]


def test_alike_rows_are_on_one_half() -> None:
    rows = layers.rows()
    assert len({(row.layer, row.direction, row.half) for row in rows}) == 89 * 3
    assert 0.4 < sum(row.half == "fit" for row in rows) / len(rows) < 0.6
    stem = next(row for row in rows if row.layer.name == "x64x3x224x224 w64x3x7x7 s2 p3")
    assert [stem._replace(direction=one).half for one in layers.DIRECTIONS] == ["fit", "fit", "fit"]


def test_strides_are_those_of_packed_arrays() -> None:
    for shape in ((2, 3, 4, 5), (2, 3, 4, 5, 6)):
        last = np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.int8), -1, 1)
        assert strides_of(shape, nhwc=True) == last.strides
        assert strides_of(shape, nhwc=False) == np.empty(shape, np.int8).strides


# --- what is left to measure -------------------------------------------------------------------------------


def left(*arguments: str, results: Any = None) -> list[Any]:
    options = bench.parse(arguments)
    results = results or Results(options.rows)
    return [job for section in options.section for job in bench.jobs(section, options, results)]


def test_what_is_in_the_file_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    command = ("--rows", str(path), "--networks", "vgg16", "--kinds", "fp16", "--directions", "forward")
    assert len(left(*command)) == 9
    results = Results(path)
    for job in left(*command, results=results)[:4]:
        row, wanted = job.args[2:]
        found = {"times": dict.fromkeys(wanted[1:], 1.0), "errors": {wanted[0]: "!"}}
        results.add(conv_rows.facts(row) | found)
    results.add(conv_rows.facts(left(*command)[0].args[2]) | {"skipped": "out of memory"})
    assert len(left(*command)) == 4
    assert len(left(*command, "--kinds", "bf16")) == 9


def test_rows_without_torch_are_measured_again_with_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    command = ("--rows", str(path), "--networks", "vgg16", "--kinds", "fp16", "--directions", "forward")
    results = Results(path)
    for job in left(*command, "--no-torch"):
        assert job.args[3] == ("guess", "time")
        results.add(conv_rows.facts(job.args[2]) | {"times": {"guess": 1.0, "time": 1.0}})
    assert left(*command, "--no-torch") == []
    assert len(left(*command)) == 9
    tables = tmp_path / "tables.jsonl"
    assert len(left(*command, "--no-torch", "--candidates", str(tables))) == 9


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = json.dumps(made_up(number=1, guess=1.0))
    path.write_text(f"{whole}\n{whole[:40]}")
    results = Results(path)
    assert [record["id"] for record in results.records] == ["layer 1 | forward | fp16"]
    results.add(made_up(number=2, guess=1.0))
    assert len(Results(path).records) == 2


def test_small_sections_are_for_the_first_shard() -> None:
    assert len(left("--section", "host", "cache")) == 2
    assert left("--section", "host", "cache", "--shard", "2/3") == []
    fused = [left("--section", "fused", "--shard", f"{k}/3") for k in (1, 2, 3)]
    assert sum(map(len, fused)) == 23
    assert len(left("--section", "all")) == 2 * 89 * 3 * 6 + 23 + 2


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "-1/3"])
def test_shards_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(["--shard", text])
    assert "shard" in capsys.readouterr().err


# --- the run -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare", lambda warm_up: None)
    monkeypatch.setattr(run, "about", lambda: {"section": "about", "id": "now", "device": "none"})
    monkeypatch.setattr(run, "lost_context", lambda: "")


def measured(row: Any, wanted: Any) -> dict[str, Any]:
    return conv_rows.facts(row) | {"times": dict.fromkeys(wanted, 40.0)}


@pytest.mark.usefixtures("no_gpu")
def test_a_run_stops_in_time_and_goes_on(
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


@pytest.mark.usefixtures("no_gpu")
def test_what_fails_as_a_whole_is_left_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(row: Any, wanted: Any) -> dict[str, Any]:
        raise OSError("no such thing")

    command = ["--rows", str(tmp_path / "rows.jsonl"), "--networks", "vgg16", "--kinds", "fp16"]
    monkeypatch.setattr(bench, "row_record", fail)
    bench.main(command)
    assert "OSError: no such thing" in capsys.readouterr().out
    assert len(left(*command)) == 27


@pytest.mark.usefixtures("no_gpu")
def test_a_lost_context_ends_the_run_and_is_passed_over_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(row: Any, wanted: Any) -> dict[str, Any]:
        return conv_rows.facts(row) | {
            "errors": dict.fromkeys(wanted, "illegal access"),
            "lost": "illegal access",
        }

    command = ["--rows", str(tmp_path / "rows.jsonl"), "--networks", "vgg16", "--kinds", "fp16"]
    monkeypatch.setattr(bench, "row_record", lose)
    with pytest.raises(SystemExit, match="illegal access"):
        bench.main(command)
    assert len(left(*command)) == 26


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


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_row_above_its_limit_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [60.0] * (2 + timing.LOOPS)  # the first call, once round, the loops
    again = [t for level in (40.0, 41.0, 42.0, 43.0, 44.0) for t in [level] * timing.LOOPS]
    record, _ = times_of(monkeypatch, torch_benchmark=40, time=slow + again)
    assert record["times"]["time"] == 60
    assert report.time_over_torch(record) == pytest.approx(42 / 40)
    record, _ = times_of(monkeypatch, torch_benchmark=20, time=60)
    assert "remeasured" not in record  # not kernel-bound


def test_who_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    record, seen = times_of(monkeypatch, torch_benchmark=10, guess=9, time=ValueError("no way"))
    assert record["errors"] == {"time": "ValueError: no way"}
    assert set(record["times"]) == set(record["first_ms"]) == {"torch_benchmark", "guess"}
    assert [name for name, _ in seen].count("time") == 1
    record, _ = times_of(monkeypatch, guess=ValueError("no"), time=ValueError("way"))
    assert record["times"] == {}
    assert "time: ValueError: way; guess: ValueError: no" in line_of(record)


def test_long_calls_are_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    record, _ = times_of(monkeypatch, torch_benchmark=9000, time=9000)
    assert (record["calls"], record["loops"]) == (5, 3)


def test_a_table_of_candidates_is_counted_in_its_line() -> None:
    record = conv_rows.facts(layers.rows()[0], "candidates")
    assert conv_rows.candidates_line(record | {"candidates": [{}, {}]}).endswith(": 2 candidates")
    assert conv_rows.candidates_line(record | {"errors": {"candidates": "no"}}).endswith(": candidates: no")


def test_first_calls_are_made_by_the_command_of_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def start(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, stdout='{"ms": 2.5}\n')

    monkeypatch.setattr(conv_cache.subprocess, "run", start)
    assert conv_cache.in_a_process("time", tmp_path / "choices", warm=True) == 2.5
    assert Path(seen[0][1]).samefile(BENCHMARKS / "conv.py")
    options = bench.parse(seen[0][2:])
    assert (options.first_call, options.warm) == ("time", True)


# --- what other benchmarks share ---------------------------------------------------------------------------


def test_a_race_knows_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"theirs": 40.0, "ours": 50.0}
    seen: list[tuple[str, str]] = []

    def at_home(contender: Any, work: Callable[..., float], *arguments: Any) -> float:
        seen.append((contender.call, work.__name__))
        return times[contender.call]

    monkeypatch.setattr(timing, "at_home", at_home)
    contenders = {name: timing.Contender(name) for name in times}
    record = timing.race(room_for("rows", "softmax"), dict(contenders), 4)
    assert seen[:2] == [("theirs", "first_call"), ("ours", "first_call")]
    assert record["times"] == times
    assert "remeasured" not in record
    limit = Limit("ours", "theirs", 1.2, bound=30)
    record = timing.race(room_for("rows", "softmax"), contenders, 4, limit=limit)
    assert record["remeasured"] == [1.25] * timing.AGAIN
    assert limit.exceeded(record)
    assert not limit._replace(bound=40).exceeded(record)
    assert ranked(limit.ratio, [record, room_for("rows", "nothing")], 1.2) == [(1.25, record)]


def test_results_of_any_benchmark_are_kept(tmp_path: Path) -> None:
    kept = Results(tmp_path / "rows.jsonl")
    kept.add(room_for("rows", "gru") | {"skipped": "out of memory"})
    assert kept.has("rows", "gru", ("anybody",))
    assert not kept.has("rows", "lstm")
    write_whole(tmp_path / "whole.json", "layers", kept.records)
    assert read(tmp_path / "whole.json") == kept.records == Results(tmp_path / "rows.jsonl").records


# --- the report --------------------------------------------------------------------------------------------


def bar(records: list[dict[str, Any]], name: str) -> Any:
    return next(one for one in report.bars(records) if one.name.startswith(name))


def test_time_bars_look_at_kernel_bound_rows_and_at_the_rest() -> None:
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


def test_guesses_are_judged_by_the_half_that_they_were_not_fitted_on() -> None:
    rows = [
        made_up(number=1, half="fit", guess=40, time=20, torch=40),
        made_up(number=2, half="report", guess=22, time=20, torch=44),
    ]
    found = bar(rows, "guess / time, fp16 NHWC, forward")
    assert (found.value, found.count) == (pytest.approx(1.1), 1)
    assert found.detail == "fitted half 2.000, all 1.483"
    assert bar(rows, "guess / torch without").value == pytest.approx(0.5)
    text = report.render(rows)
    assert "guess rows above 1.25, guess / time: 1\n   2.00 layer 1 | forward | fp16 [fit]" in text


def test_other_bars() -> None:
    new = made_up(number=1, torch_benchmark=50, time=50) | {"first_ms": {"time": 70.0}}
    far = made_up(number=2, torch_benchmark=500, time=500) | {"first_ms": {"time": 700.0}}
    host = {"torch": 10.0, "conv": 7.0, "plan_out": 6.0}
    cache = {
        "warm": {"guess": [10.0, 10.0], "time": [12.0, 12.0]},
        "cold": {"guess": [100.0], "time": [140.0]},
    }
    records = [
        *(new, far),
        *({**row, "section": "new", "first_ms": {"time": cost}} for row, cost in ((new, 66.0), (far, 600.0))),
        {**made_up(guess=5, time=4, torch_eager=10, torch_fused=5), "section": "fused"},
        {"section": "host", "id": "host", "times": host, "errors": {"frontend": "not installed"}},
        {"section": "cache", "id": "cache", "times": cache, "errors": {}},
    ]
    found = bar(records, "ms of the first")
    assert (found.verdict, found.count) == ("MISSED by 10.0 %", 1)
    assert "1 above; with engines that are compiled, median 70" in found.detail
    assert bar(records, "conv + bias + relu fused (guess)").value == 0.5
    assert bar(records, "conv + bias + relu fused (time)").value == 0.4
    assert bar(records, "host time, conv / torch").verdict == "PASS"
    assert bar(records, "host time, plan_out / torch").verdict == "MISSED by 20.0 %"
    assert bar(records, "host time, plan_out / frontend").verdict == "NOT MEASURED"
    disk = [one.verdict for one in report.bars(records) if "on disk" in one.name]
    assert disk == ["PASS", "MISSED by 7.7 %"]
    text = report.render(records)
    assert "host: frontend: not installed" in text


def test_rows_above_are_listed_with_what_was_chosen_and_errors_with_their_text() -> None:
    slow = made_up(number=1, torch_benchmark=100, torch=100, guess=110, time=105)
    slow["choice"] = {"guess": "graph engine 1", "time": "legacy winograd"}
    failed = made_up(number=2, torch=10) | {"errors": {"time": "NotSupportedError: none\nat all"}}
    text = report.render([slow, failed, made_up(number=3) | {"skipped": "out of memory"}])
    assert "kernel-bound rows above 1.03, time / torch: 1\n   1.05 layer 1" in text
    assert "        time: legacy winograd" in text
    assert "layer 2 | forward | fp16: time: NotSupportedError: none\n" in text
    assert "layer 3 | forward | fp16: skipped: out of memory" in text
    assert "errors and skipped rows: 2" in text


def test_shards_merge_and_a_whole_result_reads_as_its_rows(tmp_path: Path) -> None:
    less, more = made_up(number=1, guess=1.0), made_up(number=1, guess=2.0, time=1.0)
    assert merged([more, less]) == [more]
    assert merged([less, more]) == [more]
    records = [{"section": "about", "id": "now", "device": "made up"}, more, made_up(number=2, guess=1.0)]
    report.write_whole(tmp_path / "whole.json", records)
    assert read(tmp_path / "whole.json") == records
    whole = json.loads((tmp_path / "whole.json").read_text())
    assert whole["about"] == [{"device": "made up"}]
    assert {one["verdict"] for one in whole["bars"]} >= {"NOT MEASURED"}


def test_the_report_is_a_command_that_needs_no_torch(tmp_path: Path) -> None:
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


def test_help_needs_no_torch() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(BENCHMARKS / "conv.py"), "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--first-call" in done.stdout
