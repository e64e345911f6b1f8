"""benchmarks/: the calls that they time, and their commands."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference
from cudnn_ct.facts import why_not_a_fact
from cudnn_ct.legal.conditions import conditions_of
from cudnn_ct.legal.costs import GAIN, faster_engines, terms_of
from cudnn_ct.legal.rows import why_unknown
from tests.maintainers import TOOLS
from tests.processes import ROOT, run_python

BENCHMARKS = ROOT / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not next to these tests", allow_module_level=True)

sys.path[:0] = [str(BENCHMARKS), str(TOOLS)]
import all as table_of_speed  # noqa: E402
import costs  # noqa: E402
import doors  # noqa: E402
import host  # noqa: E402
import host_before  # noqa: E402
import host_report  # noqa: E402
import host_rows  # noqa: E402
import host_workload  # noqa: E402
import layers_rows  # noqa: E402
import layers_workload  # noqa: E402
import order  # noqa: E402
import performance_docs  # noqa: E402
import short_choices  # noqa: E402
from harness import parts, timing  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.parts import bar_of  # noqa: E402
from harness.results import Record, read  # noqa: E402
from short_choices import drawn_convolutions  # noqa: E402

sys.path[:] = [path for path in sys.path if path not in (str(BENCHMARKS), str(TOOLS))]

LAYERS = layers_workload.operations()
HOST_ROWS = (*host_workload.conv_rows(), *host_workload.layer_rows())


@pytest.fixture(autouse=True)
def _context_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_rows, "lost_context", lambda: "")


@pytest.fixture
def operations_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "DropoutState", lambda p: p)
    monkeypatch.setattr(ct, "dropout", lambda x, state, *, out=None: (x, "a mask"))
    monkeypatch.setattr(ct, "dropout_backward", lambda dy, mask, state, *, out=None: dy)
    ours = {*LAYERS, *host_workload.SIDES}
    for operation in ours - {"dropout", "dropout_backward"}:
        monkeypatch.setattr(ct, operation, getattr(reference, operation))


def layer(operation: str) -> tuple[Any, Any, Operands]:
    """Return a small row of an operation, its calls, and their operands in NumPy."""
    row = layers_workload.small(LAYERS[operation])
    pair = layers_rows.PAIRS[operation](row)._replace(prepare=None)
    arrays = {role: [np.full(a.shape, 0.5, a.dtype)] for role, a in pair.arrays.items()}
    return row, pair, Operands(1, arrays, arrays)


@pytest.mark.usefixtures("operations_in_numpy")
@pytest.mark.parametrize("operation", LAYERS)
def test_benchmark_calls_match_the_operations(operation: str) -> None:
    row, pair, operands = layer(operation)
    record = layers_rows.facts(row)
    call = layers_rows.calls_of(row, pair, operands, record, ["ours"])["ours"]
    result = call(0)
    assert record["errors"] == {}
    out = operands.ours.get("out", [None])[0]
    if out is not None and not operation.startswith("dropout"):
        assert out is (result[0] if isinstance(result, tuple) else result)


@pytest.mark.parametrize("benchmark", ["conv", "layers", "rnn"])
def test_commands_need_no_torch(benchmark: str, tmp_path: Path) -> None:
    rows, whole = BENCHMARKS / "results" / f"{benchmark}.json", tmp_path / "whole.json"
    for name, *arguments in (
        (f"{benchmark}_report.py", rows, "--json", whole),
        (f"{benchmark}.py", "--help"),
    ):
        done = run_python("-W", "error", "-X", "importtime", BENCHMARKS / name, *arguments)
        assert done.returncode == 0, done.stderr
        assert "torch" not in done.stderr
    assert "--json" in done.stdout
    assert read(whole) == read(rows)


# --- host time ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("operations_in_numpy")
@pytest.mark.parametrize("row", HOST_ROWS, ids=lambda row: row.id)
def test_host_calls_match_the_operations(row: Any) -> None:
    sides = host_workload.SIDES[row.operation](row)
    operands = [np.full(a.shape, 0.5, a.dtype) for a in sides.arrays.values()]
    result = sides.ours(*operands)
    given = result[0] if isinstance(result, tuple) else result
    assert any(given is array for array in operands)
    if sides.new is not None:
        np.testing.assert_array_equal(sides.new(*operands), given)


# PyTorch does not have all operations in half precision without a GPU.
SINGLE = [row for row in HOST_ROWS if row.kind.dtype == "float32"]


@pytest.mark.usefixtures("operations_in_numpy")
@pytest.mark.parametrize("row", SINGLE, ids=lambda row: row.id)
def test_host_calls_equal_those_of_pytorch(row: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    sides = host_workload.SIDES[row.operation](row)
    operands = [torch.rand(array.shape) for array in sides.arrays.values()]
    expected = sides.theirs(torch)(*operands)
    if isinstance(expected, tuple):
        (expected,) = (one for one in expected if one is not None)
    expected = expected.numpy().copy()  # `add` writes to the operand that ours writes to
    result = sides.ours(*(tensor.numpy() for tensor in operands))
    found = result[0] if isinstance(result, tuple) else result
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_captured_network_is_that_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("sklearn", "matplotlib", "rich"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(BENCHMARKS.parent / "examples")
    monkeypatch.delitem(sys.modules, "02_train_digits", raising=False)  # it may know another device
    example = importlib.import_module("02_train_digits")
    monkeypatch.delitem(sys.modules, "02_train_digits")
    for name in ("ops", "put"):
        monkeypatch.setattr(example, name, {"ops": reference, "put": np.asarray}[name])
    for name in ("conv", "batch_norm_inference", "pool", "activation", "add"):
        monkeypatch.setattr(ct, name, getattr(reference, name))
    rng = np.random.default_rng(0)
    network = example.Network(rng)
    named = {"0.weight": "w1", "1.weight": "scale1", "1.bias": "bias1", "4.weight": "w2"}
    named |= {"5.weight": "scale2", "5.bias": "bias2", "8.weight": "w3", "8.bias": "bias3"}
    weights = {name: network.weights[own] for name, own in named.items()}
    for norm, seen in (("1", network.seen1), ("5", network.seen2)):
        weights |= {f"{norm}.{name}": value for name, value in seen.items()}
    modules = SimpleNamespace(state_dict=lambda: {**weights, "1.num_batches_tracked": np.zeros(())})
    x = rng.standard_normal((3, 1, 8, 8)).astype(np.float32)
    found = host_workload.our_digits(modules, np.asarray).predict(x)
    np.testing.assert_allclose(found, network.predict(x), rtol=1e-5, atol=1e-6)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record calls and synchronisations in place of PyTorch. The clock advances by 2 s in each call."""
    made: list[Any] = []
    cuda = SimpleNamespace(synchronize=lambda: made.append("synchronize"))
    stand_in = SimpleNamespace(cuda=cuda, inference_mode=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch", stand_in)  # type: ignore[arg-type]
    calls = lambda: sum(2 for one in made if one != "synchronize")  # noqa: E731
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=calls))
    return made


def test_host_times_alternates_synchronised_loops(launches: list[Any]) -> None:
    calls = {
        name: timing.HostCall(lambda x, name=name: launches.append((name, x)), host_rows.repeated(arrays, 3))
        for name, arrays in {"torch": {"x": [1]}, "ours": {"x": [2, 3]}}.items()
    }
    assert timing.host_times(calls, rounds=2) == {"torch": 2e6, "ours": 2e6}
    one = ["synchronize", *[("torch", 1)] * 3, "synchronize", *[("ours", 2), ("ours", 3)] * 2]
    assert launches == one * 2


def test_measured_warms_up_every_set_of_pointers(launches: list[Any]) -> None:
    sets = host_rows.repeated({"x": list(range(host_rows.SETS))})
    record = host_rows.measured(
        {"times": {}, "errors": {}}, {"ours": timing.HostCall(launches.append, sets)}, 1
    )
    before = launches[: launches.index("synchronize")]
    assert min(before.count(i) for i in range(host_rows.SETS)) >= 20
    assert record["errors"] == {}
    assert len(sets()) < 500


def test_measured_keeps_the_reason_of_a_call_that_fails(launches: list[Any]) -> None:
    def failing() -> None:
        raise ValueError("no plan")

    calls = {name: timing.HostCall(call, lambda: [()]) for name, call in (("torch", int), ("ours", failing))}
    record = host_rows.measured({"times": {}, "errors": {}}, calls, 2)
    assert record["errors"] == {"ours": "ValueError: no plan"}
    assert set(record["times"]) == {"torch"}


def test_fresh_returns_operands_that_no_call_has_had(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, turn = SimpleNamespace(), iter(range(1000))
    monkeypatch.setattr(host_rows.ct, "config", settings)
    settled: list[int] = []
    on, off = (host_rows.fresh(settled.append, {"x": list(range(1000))}, turn, on) for on in (True, False))
    used: list[int] = []
    for sets, replay in ((on, True), (off, False), (on, True)):
        used += [x for (x,) in sets()]
        assert settings.replay is replay
    assert len({*used, *settled}) == len(used) + len(settled) == 3 * (host_rows.CALLS + host_rows.SETTLE)


@pytest.mark.parametrize("group", host.GROUPS)
def test_host_rows_have_distinct_ids(group: str) -> None:
    rows = list(host.GROUPS[group][1]())
    assert rows
    assert len({getattr(row, "id", row) for row in rows}) == len(rows)


def host_records() -> list[Record]:
    """Return a result with some of the groups."""
    half = {"ours": 2.0, "tensors": 6.0, "tensors_out": 4.0, "torch": 8.0}
    rows = [
        {"section": "conv", "id": "conv | a", "operation": "conv", "times": half},
        {"section": "conv", "id": "conv | b", "operation": "conv", "times": {**half, "ours": 8.0}},
        {"section": "conv-fresh", "id": "conv | a", "operation": "conv", "times": {}},
        {"section": "layers", "id": "pool | a", "operation": "pool", "times": {"ours": 9.0, "torch": 10.0}},
        {"section": "layers", "id": "lrn | a", "operation": "lrn", "times": {"ours": 1.0, "torch": 10.0}},
        {"section": "network", "id": "batch 1", "operation": "capture", "times": {"torch": 50.0}},
    ]
    rows[2]["missing"] = {"ours": "ct.config.replay does not exist"}
    about = {"device": "a GPU", "driver": "1", "torch": "2", "cudnn": 91900, "date": "2026-11-22T10:00:00"}
    return [{"section": "about", "id": "now", **about}, *({"errors": {}, **row} for row in rows)]


def test_host_report_compares_geometric_means_with_targets() -> None:
    bars = {bar.name: bar for bar in host_report.bars(host_records())}
    ours = bars["conv and gradients, our arrays / PyTorch"]
    assert (ours.value, ours.limit, ours.count) == (pytest.approx(0.5), 0.55, 2)
    assert ours.verdict == "PASS"
    assert ours.detail == "worst 1.00: conv | b"
    assert bars["conv and gradients, torch tensors / PyTorch"].verdict == "PASS"
    layers = f"{host_report.LAYERS} / PyTorch"
    assert bars[layers].value == pytest.approx(0.3)
    assert bars[f"{layers}, the worst row"].verdict == "MISSED by 5.9 %"


def test_host_report_prints_targets_of_the_measured_groups_last() -> None:
    text = host_report.render(host_records(), ["conv", "conv-fresh"])
    assert "a GPU" in text.splitlines()[0]
    lines = text.split("\n\n")[-1].splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("PASS ")
    assert lines[0].endswith("(2 rows; worst 1.00: conv | b)")
    assert lines[3].startswith("NOT MEASURED ")
    assert lines[3].endswith("(0 rows; ct.config.replay does not exist)")


def test_host_targets_are_all_measured_by_a_group() -> None:
    assert {target.section for target in host_report.TARGETS} < set(host.GROUPS)
    assert len({target.name for target in host_report.TARGETS}) == len(host_report.TARGETS) == 16


def test_host_results_become_tables_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    tables = [
        (name, benchmark, str(page), table)
        for name, benchmark, _, table in performance_docs.TABLES
        if benchmark == "host"
    ]
    page.write_text("".join(f"<!-- begin: {name} -->\n<!-- end: {name} -->\n" for name, *_ in tables))
    monkeypatch.setattr(performance_docs, "TABLES", tables)
    assert performance_docs.written(tmp_path)[page] == page.read_text()  # without results
    host_report.write_whole(tmp_path / "host.json", host_records())
    assert "microseconds of host time" in (tmp_path / "host.json").read_text()
    text = performance_docs.written(tmp_path)[page]
    assert "a GPU, driver 1, cuDNN 9.19.0, PyTorch 2, 2026-11-22." in text
    assert "| conv and gradients, our arrays / PyTorch | 2 | 0.50 | 1.00 | 0.55 |" in text
    assert f"| {host_report.LAYERS} / PyTorch | 2 | 0.30 | 0.90 | 0.55, each 0.85 |" in text
    assert "| captured network / PyTorch | 0 | - | - | 0.10 |" in text
    assert "| `conv` | 2 | 4.0 | 8.0 | 0.50 | 1.00 |" in text
    assert "`capture`" not in text


def test_host_command_without_torch_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    assert host.main([]) == 1
    assert capsys.readouterr().out == "PyTorch is not installed: this benchmark compares host times with it\n"


def test_host_command_stores_a_part_only_by_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(row: str, rounds: int) -> Record:
        facts = {"section": "conv", "id": row, "operation": "conv", "times": {"torch": rounds}}
        return {**facts, "errors": {"ours": "failed"} if row == "bad" else {}}

    monkeypatch.setattr(host, "no_gpu", lambda: "")
    monkeypatch.setattr(host, "RESULTS", tmp_path / "host.json")
    monkeypatch.setattr(host.command, "prepare", lambda warm_up: None)
    monkeypatch.setattr(host.command, "about", lambda: {"section": "about", "id": "now"})
    groups: dict[str, Any] = {"conv": (measure, lambda: ["good"]), "plan": (measure, lambda: ["bad"])}
    monkeypatch.setattr(host, "GROUPS", groups)
    assert host.main(["--only", "conv", "--rounds", "3"]) == 0
    assert not (tmp_path / "host.json").exists()
    assert host.main(["--only", "plan", "--json", str(tmp_path / "part.json")]) == 1
    assert [record["id"] for record in read(tmp_path / "part.json")] == ["now", "bad"]
    assert host.main([]) == 1
    assert [record["id"] for record in read(tmp_path / "host.json")] == ["now", "good", "bad"]
    assert "conv: good: torch 3.0" in capsys.readouterr().out


# The benchmarks of a checkout whose only row takes a time that its round decides.
CHECKOUT = {
    "harness/__init__.py": "",
    "harness/command.py": """
def prepare(warm_up):
    print("a library prints a line")
def keep(results, measure, row, rounds):
    results.records.append(measure(row, rounds))
""",
    "harness/results.py": """
class Results:
    def __init__(self, path):
        self.records = []
""",
    "harness/timing.py": """
def host_loop(call):
    return call()
""",
    "host_rows.py": """
import itertools
from pathlib import Path
def warm_up(): pass
def record(row, rounds):
    log, times = Path(__file__).parents[2] / "log", itertools.count(TIME)
    def call():
        with log.open("a") as file:
            print("TIME", end=" ", file=file)
        return next(times)
    found = host_times({"ours": (call,), "torch": (lambda: TIME + 1.0,)}, rounds)
    return {"section": "conv", "id": row, "times": found}
""",
    "host.py": """
import host_rows
GROUPS = {"conv": (host_rows.record, lambda: ["a row", "other"])}
""",
    "torch.py": "from contextlib import nullcontext as inference_mode\n",
}


def test_host_times_of_two_checkouts_alternate_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, time in (("now", "3"), ("before", "4")):
        for file, text in CHECKOUT.items():
            path = tmp_path / name / "benchmarks" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("TIME", time), encoding="utf-8")
    monkeypatch.setattr(host_before, "ROOT", tmp_path / "now")
    given = ["--rounds", "3", "--turns", "2", "--only", "conv", "--json", str(tmp_path / "both.json")]
    assert host_before.main([str(tmp_path / "before"), *given]) == 0
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["4", "3"] * 6 + ["3", "4"] * 6
    assert " 1.000  all 2 rows of ours, 0 above 1.03" in capsys.readouterr().out  # PyTorch's differ as much
    stored = json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    assert stored["conv, ours | other"] == [[4, 4], [5, 5]]  # the medians of both turns, now and before


def test_host_times_of_a_checkout_that_fails_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_before, "ROOT", tmp_path / "without benchmarks")
    (tmp_path / "without benchmarks").mkdir()
    (tmp_path / "before").mkdir()
    assert host_before.main([str(tmp_path / "before"), "--only", "conv"]) == 1


def test_costs_are_those_of_which_times_consist() -> None:
    known = {"engine 0": {"call": 8.0, "waves": 200.0}, "engine 62": {"call": 20.0, "x": 3.5, "tiles": 5.0}}
    source, rows = random.Random(4), []
    while len(rows) < 40:
        one = next(drawn_convolutions(source.randrange(2**31), 1))
        row = {"direction": source.choice(order.DIRECTIONS), "drawn": one}
        terms = terms_of(costs.problem_of(row))
        times = {name: sum(of[term] * terms[term] for term in of) for name, of in known.items()}
        times["engine 62 knobs 2=1"] = times.pop("engine 62")
        rows.append({**row, "times": times, "chosen": "engine 0", "cudnn": "engine 62 knobs 2=1"})
    timed = [(costs.problem_of(row), row) for row in rows]
    found = costs.fitted(timed, ["engine 0"])
    assert {
        name: {term: one for term, one in of.items() if one > 1e-4} for name, of in found.items()
    } == known
    for problem, row in timed:
        faster = faster_engines(problem, found, ["engine 0"], row["cudnn"])
        assert bool(faster) == (row["times"]["engine 0"] * GAIN < row["times"][row["cudnn"]])
    about = {"cudnn": "9.19", "device": "H200"}
    for row in costs.facts_of(timed, about, "9.0"):
        assert not why_not_a_fact(row)
        assert not why_unknown(row, conditions_of)


def test_table_of_doors_has_a_line_for_each_target_that_was_measured() -> None:
    rows = [
        {"part": "host", "row": "small", "ratio": 1.0, "calls": 2},
        {"part": "host", "row": "other", "error": "ValueError: no"},
        {"part": "host", "about": {"jax": "0"}},
    ]
    bars = [bar_of(target, rows, ["host", "lstm"]) for target in doors.TARGETS]
    found = {bar.name: str(bar).split("<=")[0].split() for bar in bars if bar}
    assert found == {
        "handler calls per step once captured": ["MISSED", "2.000"],
        "host time of a step / jax alone": ["PASS", "1.000"],
        "4 LSTM layers, float32 / jax.experimental.rnn": ["NOT", "MEASURED", "-"],
        "4 LSTM layers, float16 / float32 there": ["NOT", "MEASURED", "-"],
    }
    assert "(1 row; 1 failed)" in str(bars[5])


def test_part_of_doors_that_fails_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without JAX, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "jax.py").write_text("raise ImportError('no jax here')\n")
    assert doors.main(["--part", "lstm", "--dry", "--json", str(tmp_path / "doors.json")]) == 1
    assert "ImportError: no jax here" in capsys.readouterr().out
    written = json.loads((tmp_path / "doors.json").read_text())
    assert [bar["verdict"] for bar in written["bars"]] == ["NOT MEASURED"] * 2


def test_each_target_of_the_table_of_speed_has_a_part() -> None:
    assert {target.part for target in table_of_speed.TARGETS} == set(table_of_speed.PARTS)
    assert len({target.name for target in table_of_speed.TARGETS}) == len(table_of_speed.TARGETS)


def test_added_rows_keep_the_others_and_their_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.json"
    old = [{"part": "fast", "row": "a", "us": 1.0}, {"part": "slow", "row": "b", "us": 2.0}]
    file.write_text(json.dumps({"about": {"device": "NVIDIA H200", "cudnn": "9.19.0"}, "rows": old}))
    benchmark = parts.Parts("one", Path("one.py"), {"fast": list, "slow": list}, ())
    new = {"part": "slow", "row": "c", "us": 3.0}
    monkeypatch.setattr(parts.Parts, "run", lambda *_: [new])
    monkeypatch.setattr(parts, "device", lambda: parts.NO_GPU)
    assert benchmark.main(argparse.ArgumentParser(), ["--part", "slow", "--add", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["rows"], found["about"]["device"]) == ([old[0], new], "NVIDIA H200")
    assert found["about"]["cudnn"] == "9.19.0"  # of a part that reported it
    monkeypatch.setattr(parts, "device", lambda: "NVIDIA H100")
    benchmark.main(argparse.ArgumentParser(), ["--part", "slow", "--json", str(file)])
    found = json.loads(file.read_text())
    assert (found["rows"], found["about"]["device"]) == ([new], "NVIDIA H100")


def test_first_calls_have_a_floor_that_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        kind, seed, algo = command[3:]
        if kind == "norm":
            return SimpleNamespace(returncode=1, stderr="Traceback\nValueError: no engine\n")
        ms = int(seed) + 100 * (algo == "autotune")
        return SimpleNamespace(returncode=0, stdout=f'a line\n{{"ms": {ms}}}\n')

    monkeypatch.setattr(short_choices.subprocess, "run", run)
    rows = {row.pop("row"): row for row in short_choices.first(seed=7)}
    assert rows["convolution 1"] == {"ms": 108, "ms_floor": 8}
    assert rows["norm 0"] == {"error": "ValueError: no engine"}
    own = [{"part": "first", "row": name, **row} for name, row in rows.items()]
    bars = [bar_of(target, own, ["first"]) for target in table_of_speed.TARGETS]
    assert {bar.name: bar.floor for bar in bars if bar}["first autotuned product, ms"] == 8


def test_target_counts_the_rows_with_its_word() -> None:
    rows = [
        {"part": "choices", "row": str(place), "ratio": ratio} for place, ratio in enumerate((1.0, 1.5, 2.0))
    ]
    rows += [{"part": "layers", "row": "softmax, 3 x 4", "ratio": 2.0}]
    rows += [{"part": "layers", "row": "norm, 3 x 4", "ratio": 8.0}]
    bars = [bar_of(target, rows, ["choices", "layers"]) for target in table_of_speed.TARGETS]
    found = {bar.name: bar.value for bar in bars if bar}
    assert found["heuristic / autotune, rows over 1.6, %"] == pytest.approx(100 / 3)
    assert found["softmax"] == 2
    assert found["worst layer"] == 8


def test_drawn_convolutions_are_those_of_their_seed() -> None:
    first, again, other = (list(short_choices.drawn_convolutions(seed, 30)) for seed in (1, 1, 2))
    assert first == again != other
    assert {one.groups == 1 for one in first} == {True, False}
    assert {len(one.x) for one in first} == {3, 4, 5}
