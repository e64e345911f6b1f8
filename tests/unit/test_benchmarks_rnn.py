"""benchmarks/rnn*.py: the rows, what they call, what is left to measure, and the report."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import rnn as bench  # noqa: E402
import rnn_host as host  # noqa: E402
import rnn_networks as networks  # noqa: E402
import rnn_report as report  # noqa: E402
import rnn_rows as rows  # noqa: E402
import rnn_workload as workload  # noqa: E402
from harness import command as run  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.results import Results, read, room_for  # noqa: E402

sys.path.remove(str(BENCHMARKS))

ROW = workload.Row("lstm", 4, 1, 1, 3, 5, workload.KINDS["fp16"], "forward")


# --- the workload ------------------------------------------------------------------------------------------


def test_each_row_is_there_once() -> None:
    found = workload.rows()
    assert len({row.id for row in found}) == len(found) == 60
    assert Counter(row.section for row in found) == {"padded": 50, "packed": 10}
    assert Counter(row.work for row in found) == {"forward": 30, "training": 30}


def test_every_two_choices_meet_in_some_row() -> None:
    found = workload.rows(sections=["padded"])
    choices = {
        "mode": workload.MODES, "hidden": workload.HIDDEN, "batch": workload.BATCHES, "steps": workload.STEPS,
        "kind": tuple(workload.KINDS.values()), "work": workload.PASSES, "layers": (1, 2),
        "directions": (1, 2),
    }  # fmt: skip
    for one, other in itertools.combinations(choices, 2):
        if {one, other} == {"layers", "directions"}:
            continue
        met = {(getattr(row, one), getattr(row, other)) for row in found}
        assert met == set(itertools.product(choices[one], choices[other])), f"{one} and {other}"
    three = {(row.mode, row.kind.name, row.work) for row in found}
    assert len(three) == len(workload.MODES) * len(workload.KINDS) * len(workload.PASSES)


def test_rows_say_what_they_are() -> None:
    found = {row.id for row in workload.rows()}
    assert "lstm 512 x1 | batch 32 steps 50 packed | fp16 | forward" in found
    assert "lstm 256 x1 | batch 1 steps 25 | fp16 | forward" in found


def test_packed_batches_have_the_longest_first() -> None:
    for row in workload.rows(sections=["packed"]):
        assert list(row.lengths) == sorted(row.lengths, reverse=True)
        assert (max(row.lengths), len(row.lengths)) == (row.steps, row.batch)
        assert min(row.lengths) == max(1, row.steps // 4)
        assert row.arrays["x"].shape == (sum(row.lengths), row.hidden)
    row = ROW._replace(directions=2, work="training")
    assert {role: array.shape for role, array in row.arrays.items()} == {"x": (5, 3, 4), "dy": (5, 3, 8)}
    assert ROW._replace(packed=True, batch=1).lengths == (5,)


def test_batch_sizes_are_those_of_packed_sequences() -> None:
    assert networks.batch_sizes((4, 2, 2, 1)) == [4, 3, 1, 1]
    for row in workload.rows(sections=["packed"]):
        assert sum(networks.batch_sizes(row.lengths)) == sum(row.lengths)


def test_shards_are_disjoint_and_together_everything() -> None:
    parts = [workload.rows(shard=(k, 4)) for k in range(1, 5)]
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in workload.rows())
    some = {"modes": ["gru"], "kinds": ["bf16"]}
    assert {(row.mode, row.kind.name) for row in workload.rows(**some)} == {("gru", "bf16")}
    assert workload.rows(**some, every=2) == workload.rows(**some)[::2]


# --- what is called ----------------------------------------------------------------------------------------


class FakeRNN:
    """The class as the benchmark uses it: it notes how it was called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.made, self.calls = (arguments, options), []
        self.weight_size = 10

    def from_torch(self, state: Any) -> Any:
        return ("weights of", state)

    def to_torch(self, weights: Any) -> Any:
        return {"bias": weights + 2, "weight": weights + 1}

    def forward(self, x: Any, w: Any, **given: Any) -> Any:
        self.calls.append(("forward", given))
        return SimpleNamespace(y="y", hy="hy", cy=None, reserve="reserve")

    def backward_data(self, dy: Any, reserve: Any) -> Any:
        self.calls.append(("data", reserve, dy))
        return "dx", "dh0", None

    def backward_weights(self, reserve: Any) -> Any:
        self.calls.append(("weights", reserve))
        return 5


NETWORK = SimpleNamespace(
    state_dict=lambda: "theirs", named_parameters=lambda: [("weight", None), ("bias", None)]
)
OPERANDS = Operands(1, {}, {"x": ["x"], "dy": ["dy"]})


@pytest.fixture
def made_up_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "RNN", FakeRNN, raising=False)
    monkeypatch.setattr(rows, "lost_context", lambda: "")


@pytest.mark.usefixtures("made_up_class")
def test_our_networks_are_those_of_the_rows() -> None:
    row = ROW._replace(layers=2, directions=2, kind=workload.KINDS["tf32"])
    ours = networks.our_network(row, NETWORK, "heuristic")
    assert ours.weights == ("weights of", "theirs")
    assert ours.rnn.made == (
        ("lstm", 4, 4, 2),
        {
            "direction": "bidirectional", "dtype": "float32", "precision": "tf32",
            "algo": "heuristic",
        },
    )  # fmt: skip


@pytest.mark.usefixtures("made_up_class")
def test_our_calls_are_those_of_the_class() -> None:
    ours = networks.our_network(ROW, NETWORK, "autotune")
    assert networks.our_call(ROW, ours, OPERANDS)(0) == ("y", "hy", None)
    assert ours.rnn.calls.pop() == ("forward", {"out": None})
    row = ROW._replace(packed=True, work="training")
    assert networks.our_call(row, ours, OPERANDS)(0, y="out") == ("y", "dx", 5)
    given = {"training": True, "out": "out", "lengths": row.lengths, "layout": "packed"}
    assert ours.rnn.calls == [("forward", given), ("data", "reserve", "dy"), ("weights", "reserve")]


@pytest.mark.usefixtures("made_up_class")
def test_results_are_in_pytorchs_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "poison", lambda *_: None)
    monkeypatch.setattr(networks, "_on_gpu", lambda one: one)
    monkeypatch.setattr(ct, "full", lambda *arguments: ("nan", *arguments))
    ours = networks.our_network(ROW, NETWORK, "autotune")
    call = networks.our_call(ROW, ours, OPERANDS)
    assert networks.our_results(ROW, ours, NETWORK, call) == ["y", "hy"]
    assert ours.rnn.calls[0][1]["out"][:2] == ("nan", (5, 3, 4))
    row = ROW._replace(work="training")
    call = networks.our_call(row, ours, OPERANDS)
    assert networks.our_results(row, ours, NETWORK, call) == ["y", "dx", 6, 7]


@pytest.mark.usefixtures("made_up_class")
def test_who_cannot_even_begin_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no such network")

    monkeypatch.setattr(networks, "torch_network", lambda row: NETWORK)
    monkeypatch.setattr(networks, "torch_call", fail)
    record = rows.facts(ROW)
    assert list(rows.sides_of(ROW, OPERANDS, record)) == ["time", "guess"]
    assert record["errors"] == {"torch": "ValueError: no such network"}
    monkeypatch.setattr(networks, "torch_network", fail)
    assert rows.sides_of(ROW, OPERANDS, record) == {}
    assert record["skipped"] == "no network: ValueError: no such network"


def test_a_class_that_is_not_there_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ct", SimpleNamespace())
    monkeypatch.setattr(networks, "torch_network", lambda row: NETWORK)
    monkeypatch.setattr(networks, "torch_call", lambda *_: None)
    record = rows.facts(ROW)
    assert list(rows.sides_of(ROW, OPERANDS, record)) == ["torch"]
    assert record["errors"] == {"time": "not there yet", "guess": "not there yet"}
    assert not rows.came_since(record)
    monkeypatch.setattr(rows, "ct", SimpleNamespace(RNN=FakeRNN))
    assert rows.came_since(record)


@pytest.mark.parametrize(
    ("apart", "error"),
    [
        (0.001, None),
        (0.5, "computes something else: relatively 0.5 from PyTorch's result, not 0.02"),
        (math.nan, "computes something else: relatively nan"),
        (ValueError("shapes"), "cannot be compared with PyTorch's result: ValueError: shapes"),
    ],
    ids=str,
)
def test_a_wrong_result_takes_the_time_away(
    apart: Any, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> Any:
        if isinstance(apart, Exception):
            raise apart
        return [apart]

    torch = ModuleType("torch")
    torch.__dict__.update(inference_mode=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(rows, "distance", lambda ours, theirs: ours)
    monkeypatch.setattr(rows, "lost_context", lambda: "")
    record = rows.facts(ROW) | {"times": {"torch": 9.0, "time": 1.0, "guess": 2.0}, "remeasured": [0.1]}
    right = rows.Side(lambda i: None, lambda: [0.0])
    rows.compare(record, ROW, {"torch": right, "time": rows.Side(lambda i: None, results), "guess": right})
    if error is None:
        assert record["times"] == {"torch": 9.0, "time": 1.0, "guess": 2.0}
        assert record["apart"] == {"time": 0.001, "guess": 0.0}
    else:
        assert record["times"] == {"torch": 9.0, "guess": 2.0}
        assert record["errors"]["time"].startswith(error)
        assert report.time_over_torch(record) is None


def test_differences_are_the_largest_of_all_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "distance", lambda a, b: float(np.abs(a - b)))
    assert rows.difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert math.isnan(rows.difference([1.0, math.nan], [1.0, 2.5]))
    with pytest.raises(ValueError, match="zip"):
        rows.difference([1.0], [1.0, 2.5])


# --- what is left to measure -------------------------------------------------------------------------------


def left(*arguments: str, results: Any = None) -> list[Any]:
    options = bench.parse(arguments)
    return list(bench.jobs(options, results or Results(options.rows)))


def test_what_is_in_the_file_is_not_measured_again(tmp_path: Path) -> None:
    assert len(left()) == 60
    assert len(left("--section", "all")) == 64
    assert len(left("--section", "host", "--modes", "gru", "lstm")) == 2
    assert left("--section", "host", "--shard", "2/3") == []
    command = ("--rows", str(tmp_path / "rows.jsonl"), "--section", "packed", "--modes", "gru")
    todo, results = left(*command), Results(tmp_path / "rows.jsonl")
    assert len(todo) == 3
    results.add(rows.facts(todo[0].args[2]) | {"times": {"torch": 1.0, "time": 1.0, "guess": 1.0}})
    results.add(rows.facts(todo[1].args[2]) | {"times": {"torch": 1.0}, "errors": {"time": "", "guess": ""}})
    assert [job.args[2] for job in left(*command)] == [todo[2].args[2]]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare", lambda warm_up: None)
    monkeypatch.setattr(run, "about", lambda: {"section": "about", "id": "now", "device": "none"})


@pytest.mark.usefixtures("no_gpu")
def test_a_run_stops_in_time_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(row: Any) -> dict[str, Any]:
        return rows.facts(row) | {"times": {"torch": 40.0, "time": 20.0, "guess": 30.0}}

    file, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    command = ["--rows", str(file), "--json", str(whole), "--kinds", "bf16"]
    monkeypatch.setattr(bench, "row_record", measured)
    bench.main([*command, "--seconds", "-1"])
    assert "19 left: run the same command again" in capsys.readouterr().out
    bench.main(command)
    out = capsys.readouterr().out
    assert "torch 40.0, time 20.0, guess 30.0; time / torch 0.50\n" in out
    assert "PASS                0.500 <= 0.85  time / torch, sequences of one length (17 rows; forward" in out
    assert out.splitlines()[-1].split() == [
        "all",
        "0.500",
        "0.50",
        "19",
        "0.750",
        "0.75",
        "19",
        "1.500",
        "1.50",
        "19",
    ]
    assert len(read(whole)) == 20
    bench.main(command)
    assert capsys.readouterr().out.startswith("0 to measure")


# --- the report --------------------------------------------------------------------------------------------


def made_up(number: int = 0, *, packed: bool = False, **times: float) -> dict[str, Any]:
    return rows.facts(ROW._replace(hidden=number + 1, packed=packed)) | {"times": times}


def bar(records: list[dict[str, Any]], name: str) -> Any:
    return next(one for one in report.bars(records) if one.name.startswith(name))


def test_packed_sequences_are_judged_apart() -> None:
    records = [
        made_up(torch=100, time=50, guess=60),
        made_up(1, torch=100, time=80),
        made_up(packed=True, torch=100, time=103, guess=103),
    ]
    found = bar(records, "time / torch, sequences")
    assert (found.value, found.limit, found.count) == (pytest.approx(0.4**0.5), 0.85, 2)
    assert found.detail == "forward 0.632, training -, guess / torch 0.600"
    assert bar(records, "time / torch, packed").verdict == "MISSED by 3.0 %"
    worst = bar(records, "time / torch, the worst")
    assert (worst.value, worst.limit, worst.count, worst.verdict) == (1.03, 1.05, 3, "PASS")


def test_rows_above_are_listed_by_what_was_measured_again() -> None:
    records = [
        made_up(1, torch=100, time=110),
        made_up(2, torch=100, time=150) | {"remeasured": [1.3, 1.2, 1.4]},
        made_up(3, torch=100, time=150) | {"remeasured": [1.0, 0.9, 1.05]},
    ]
    text = report.render(records)
    assert "rows above 1.05, time / torch: 2\n   1.30 lstm 3 x1 | batch 3 steps 5 | fp16 | forward:" in text
    assert "time 150.0 (measured again)\n" in text
    assert bar(records, "time / torch, the worst").detail == "2 above"


def test_each_mode_has_its_bar_of_host_time() -> None:
    records = [room_for("host", "host gru", mode="gru") | {"times": {"torch": 10, "ours": 5, "ours_out": 4}}]
    assert bar(records, "host time, gru").value == 0.5
    assert bar(records, "host time, gru").detail == "torch 10.0, ours 5.0, ours_out 4.0 us"
    assert bar([], "host time").verdict == "NOT MEASURED"
    assert {one.verdict for one in report.bars([])} == {"NOT MEASURED"}
    assert report.render([]).startswith("0 rows, 0 modes on the host\n")


def test_the_host_is_measured_on_a_network_that_is_small() -> None:
    for mode in workload.MODES:
        row = host.small(mode)
        assert (row.mode, row.work, row.arrays["x"].shape) == (mode, "forward", (1, 2, 8))


@pytest.mark.parametrize("name", ["rnn.py", "rnn_report.py"])
def test_commands_need_no_torch(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    path.write_text(json.dumps(made_up(torch=40, time=30)) + "\n")
    arguments = ["--help"] if name == "rnn.py" else [str(path), "--json", str(whole)]
    command = [sys.executable, "-W", "error", "-X", "importtime", str(BENCHMARKS / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr
    if whole.exists():
        assert json.loads(whole.read_text())["benchmark"] == "rnn"
        assert read(whole) == read(path)
    else:
        assert "--section" in done.stdout
