"""benchmarks/layers*.py: the rows, what they call, their floors, what is left to measure, and the report."""

from __future__ import annotations

import contextlib
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
from cudnn_ct import reference

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import layers as bench  # noqa: E402
import layers_host as host  # noqa: E402
import layers_report as report  # noqa: E402
import layers_rows as rows  # noqa: E402
import layers_workload as workload  # noqa: E402
from harness import command as run  # noqa: E402
from harness.operands import Array, Operands  # noqa: E402
from harness.results import Results, read, room_for  # noqa: E402
from harness.timing import keeping  # noqa: E402
from layers_pair import Pair, difference  # noqa: E402

sys.path.remove(str(BENCHMARKS))

OPERATIONS = workload.operations()


def row_of(operation: str, kind: str = "fp16-nchw", *x: int, **parameters: Any) -> workload.Row:
    layer = workload.Layer("made up", x, tuple(parameters.items()))
    return OPERATIONS[operation]._replace(layer=layer, kind=workload.KINDS[kind])


# --- the workload ------------------------------------------------------------------------------------------


def test_each_row_is_there_once() -> None:
    found = workload.rows()
    assert len({row.id for row in found}) == len(found) == 466
    assert Counter(row.family for row in found) == {
        "pooling": 80,
        "softmax": 68,
        "batch_norm": 144,
        "activation": 60,
        "reduction": 33,
        "grid": 24,
        "dropout": 36,
        "lrn": 12,
        "tensor": 9,
    }
    assert {row.direction for row in found} == set(workload.DIRECTIONS)


def test_each_operation_has_its_pair() -> None:
    assert list(OPERATIONS) == list(rows.PAIRS)


def test_rows_are_those_of_the_networks() -> None:
    found = {row.id for row in workload.rows()}
    for key in (
        "pool | x64x64x112x112 window=3 stride=2 padding=1 mode=max | fp16-nhwc",
        "pool_backward | x8x64x568x568 window=2 mode=max | fp32-nchw",
        "softmax | x64x21x128x128 algo=log axis=1 | bf16-nhwc",
        "batch_norm_backward | x64x2048x7x7 | fp32-nhwc",
        "reduce | x64x256x56x56 op=avg axis=0,2,3 | fp16-nchw",
        "grid_sample | x32x64x56x56 | fp32-nchw",
        "dropout | x64x4096 p=0.5 | fp16-nchw",
    ):
        assert key in found


def test_shards_are_disjoint_and_together_everything() -> None:
    everything = workload.rows()
    parts = [workload.rows(shard=(k, 5)) for k in range(1, 6)]
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in everything)
    assert len({row.family for row in parts[0][:40]}) > 5  # mixed, not in the order of a table


def test_selections() -> None:
    some = {"families": ["softmax", "grid"], "kinds": ["fp32-nchw"]}
    found = workload.rows(**some)
    assert {(row.family, row.kind.name) for row in found} == {("softmax", "fp32-nchw"), ("grid", "fp32-nchw")}
    assert workload.rows(**some, every=4) == found[::4]
    assert workload.rows(**some, every=2, shard=(2, 2)) == found[::2][1::2]


# --- what must move ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "elements"),
    [
        (row_of("pool", "fp16-nchw", 2, 3, 8, 8, window=2, mode="max"), 384 + 96),
        (row_of("pool_backward", "fp16-nchw", 2, 3, 8, 8, window=2, mode="max"), 384 + 96 + 384),  # not y
        (row_of("pool_backward", "fp16-nchw", 2, 3, 8, 8, window="global", mode="average"), 6 + 384),
        (row_of("softmax_backward", "fp16-nchw", 4, 10, algo="log", axis=-1), 3 * 40),
        (row_of("batch_norm_training", "fp16-nchw", 2, 4, 8, 8), 2 * 512 + 2 * 4 * 4),  # parameters: float32
        (row_of("activation_backward", "fp16-nchw", 4, 10, mode="relu"), 3 * 40),
        (row_of("activation_backward", "fp16-nchw", 4, 10, mode="swish"), 3 * 40),
        (row_of("reduce", "fp16-nchw", 4, 10, op="max", axis=-1), 40 + 4),
        (row_of("reduce", "fp16-nchw", 4, 10, op="norm2", axis=None), 40),
        (row_of("affine_grid", "fp16-nchw", 2, 3, 8, 8), 2 * 6 + 2 * 64 * 2),
        (row_of("grid_sample_backward", "fp16-nchw", 2, 3, 8, 8), 3 * 384 + 2 * 256),
        (row_of("dropout", "fp16-nchw", 4, 64, p=0.5), 256 + 256 + 16),  # a bit for each element
        (row_of("lrn_backward", "fp16-nchw", 2, 3, 8, 8), 3 * 384),
        (row_of("add", "fp16-nchw", 2, 3, 8, 8, b=(1, 3, 1, 1)), 384 + 3 + 384),
    ],
    ids=lambda value: value.id if isinstance(value, workload.Row) else None,
)
def test_the_floor_counts_what_must_be_read_and_written(row: workload.Row, elements: int) -> None:
    assert rows.PAIRS[row.operation](row).bytes == 2 * elements


def test_every_row_says_what_it_needs() -> None:
    for row in workload.rows():
        pair = rows.PAIRS[row.operation](row)
        dtypes = {array.dtype for role, array in pair.arrays.items() if role not in ("made", "mask")}
        assert row.kind.dtype in dtypes <= {row.kind.dtype, "float32"}
        assert 0 < pair.bytes < 5e9
        last = row.kind.nhwc and len(row.layer.x) == 4
        assert {array.nhwc for array in pair.arrays.values() if len(array.shape) == 4} <= {
            last,
            row.kind.nhwc,
        }


# --- what is called ----------------------------------------------------------------------------------------


class _Dice:
    def __init__(self, p: float) -> None:
        self.p = p


def _dropout(x: Any, state: _Dice, *, out: Any = None) -> Any:
    return x, "a mask"


def _dropout_backward(dy: Any, mask: Any, state: _Dice, *, out: Any = None) -> Any:
    assert mask == "a mask"
    return dy


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations in NumPy, with the signatures that those on the device have."""
    more = {"dropout": _dropout, "dropout_backward": _dropout_backward, "DropoutState": _Dice}
    for operation in OPERATIONS:
        monkeypatch.setattr(
            ct, operation, more.get(operation) or getattr(reference, operation), raising=False
        )
    monkeypatch.setattr(ct, "DropoutState", _Dice, raising=False)
    monkeypatch.setattr(rows, "lost_context", lambda: "")


def in_numpy(pair: Pair) -> Operands:
    arrays = {role: [np.full(a.shape, 0.5, a.dtype)] for role, a in pair.arrays.items()}
    return Operands(1, arrays, arrays)


def without_torch(operation: str) -> tuple[workload.Row, Pair]:
    row = host.small(OPERATIONS[operation])
    return row, rows.PAIRS[operation](row)._replace(prepare=None)


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_our_calls_are_those_of_the_operations(operation: str) -> None:
    row, pair = without_torch(operation)
    operands, record = in_numpy(pair), rows.facts(row)
    calls = rows.calls_of(row, pair, operands, record, ["ours"])
    assert record["errors"] == {}
    results = calls["ours"](0)
    first = results[0] if isinstance(results, tuple) else results
    if "out" in operands.ours and not operation.startswith("dropout"):
        assert first is operands.ours["out"][0]
    elif "made" in operands.ours and not operation.startswith("dropout"):
        assert first.shape == operands.ours["made"][0].shape
    free = host.without_out(operands)
    calls = rows.calls_of(row, pair, free, record, ["ours"])
    assert calls["ours"](0) is not None


@pytest.mark.usefixtures("on_the_host")
def test_an_operation_that_is_not_there_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    row, pair = without_torch("lrn")
    monkeypatch.setattr(rows, "ct", SimpleNamespace())
    record = rows.facts(row)
    pair = pair._replace(theirs=lambda operands: lambda i: "theirs")
    calls = rows.calls_of(row, pair, in_numpy(pair), record)
    assert list(calls) == ["torch"]
    assert record["errors"] == {"ours": "not there yet"}
    assert not rows.came_since(record)
    monkeypatch.setattr(rows, "ct", SimpleNamespace(lrn=reference.lrn))
    assert rows.came_since(record)


@pytest.mark.usefixtures("on_the_host")
def test_who_cannot_even_begin_leaves_the_other() -> None:
    row, pair = without_torch("softmax")

    def fail(operands: Operands) -> Any:
        raise TypeError("no such parameter")

    record = rows.facts(row)
    calls = rows.calls_of(row, pair._replace(theirs=fail), in_numpy(pair), record)
    assert (list(calls), record["errors"]) == (["ours"], {"torch": "TypeError: no such parameter"})
    record = rows.facts(row)
    assert rows.calls_of(row, pair._replace(prepare=fail), in_numpy(pair), record) == {}
    assert record["skipped"] == "no operands: TypeError: no such parameter"


def test_results_are_kept_until_their_turn_comes_again() -> None:
    made: list[np.ndarray[Any, Any]] = []

    def call(i: int) -> Any:
        made.append(np.zeros(i + 1))
        return made[-1]

    again = keeping(call, 2)
    for i in (0, 1, 0):
        assert again(i) is None
    references = [sys.getrefcount(made[i]) for i in range(3)]
    assert references[1] == references[2] == references[0] + 1


# --- whether both compute the same -------------------------------------------------------------------------


class Tensor(np.ndarray):  # type: ignore[type-arg]
    """As much of PyTorch's as a comparison needs, on host memory."""

    def fill_(self, value: float) -> None:
        self[...] = value

    def copy_(self, other: Any) -> None:
        self[...] = other

    def clone(self) -> Any:
        return self.copy()

    def float(self) -> Any:
        return self.astype(np.float32)

    def norm(self) -> Any:
        return np.asarray(np.linalg.norm(np.asarray(self))).view(Tensor)

    def clamp(self, min: float) -> Any:
        return np.asarray(np.maximum(self, min)).view(Tensor)


def tensor(*values: float) -> Any:
    return np.array(values, np.float32).view(Tensor)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module torch that has what a comparison needs, whatever is installed."""
    torch = ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor, from_dlpack=lambda one: one.view(Tensor), inference_mode=contextlib.nullcontext
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


def two(ours: Any, theirs: Any, **more: Any) -> tuple[Pair, Operands, Any, Any]:
    """A pair whose operand is doubled, by PyTorch correctly."""
    arrays = {"x": Array((3,), "float32"), "out": Array((3,), "float32", empty=True)}
    tensors = {"x": [tensor(1, 2, 3)], "out": [tensor(2, 4, 6)]}
    pair = Pair(arrays, theirs=lambda _: theirs, ours=lambda _: ours, **more)
    return pair, Operands(1, tensors, tensors), ours, theirs


@pytest.mark.usefixtures("stand_in")
def test_results_are_held_against_pytorchs() -> None:
    pair, operands, _, theirs = two(None, lambda i: operands.theirs["x"][i] * 2)
    out = operands.ours["out"]

    def right(i: int) -> Any:
        out[i].copy_(operands.ours["x"][i] * 2)
        return np.asarray(out[i])

    assert difference(pair, operands, right, theirs) == 0
    assert math.isnan(difference(pair, operands, lambda i: out[i], theirs))  # nobody wrote it
    assert difference(pair, operands, lambda i: operands.ours["x"][i] * 3, theirs) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"our result has shape \(2,\), PyTorch's \(3,\)"):
        difference(pair, operands, lambda i: tensor(1, 2), theirs)


@pytest.mark.usefixtures("stand_in")
def test_what_is_updated_in_place_is_held_against_pytorchs_too() -> None:
    def step(by: float) -> Any:
        def call(i: int) -> Any:
            x = operands.theirs["x"][i]
            y = x * 2
            x.copy_(x + by)
            return (y,)

        return call

    pair, operands, *_ = two(None, None, updated=("x",))
    assert difference(pair, operands, step(1), step(1)) == 0
    assert difference(pair, operands, step(0), step(1)) > 0.1
    assert operands.theirs["x"][0].tolist() == [1, 2, 3]  # put back


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("apart", "error"),
    [
        (0.001, None),
        (0.5, "computes something else: relatively 0.5 from PyTorch's result, not 0.01"),
        (math.nan, "computes something else: relatively nan"),
        (ValueError("shapes"), "cannot be compared with PyTorch's result: ValueError: shapes"),
    ],
    ids=str,
)
def test_a_wrong_result_takes_the_time_away(
    apart: Any, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any) -> float:
        if isinstance(apart, Exception):
            raise apart
        return float(apart)

    monkeypatch.setattr(rows, "difference", measure)
    monkeypatch.setattr(rows, "lost_context", lambda: "")
    row, pair = without_torch("softmax")
    record = rows.facts(row) | {"times": {"torch": 10.0, "ours": 1.0}, "remeasured": [0.1]}
    rows.compare(record, row, pair, in_numpy(pair), {"ours": None, "torch": None})
    if error is None:
        assert record["times"] == {"torch": 10.0, "ours": 1.0}
        assert record["errors"] == {}
    else:
        assert record["times"] == {"torch": 10.0}
        assert record["errors"]["ours"].startswith(error)
        assert report.ours_over_torch(record) is None


def test_rows_on_the_host_are_small() -> None:
    for operation, row in OPERATIONS.items():
        found = host.small(row)
        assert max(found.layer.x) <= host.SMALL
        assert rows.PAIRS[operation](found).bytes < 100_000


# --- what is left to measure -------------------------------------------------------------------------------


def left(*arguments: str, results: Any = None) -> list[Any]:
    options = bench.parse(arguments)
    results = results or Results(options.rows)
    return [job for section in options.section for job in bench.jobs(section, options, results)]


def test_what_is_in_the_file_is_not_measured_again(tmp_path: Path) -> None:
    command = ("--rows", str(tmp_path / "rows.jsonl"), "--family", "lrn", "--kinds", "fp16-nhwc")
    todo = left(*command)
    assert len(todo) == 4
    results = Results(tmp_path / "rows.jsonl")
    results.add(rows.facts(todo[0].args[2]) | {"times": {"torch": 1.0, "ours": 1.0}})
    results.add(rows.facts(todo[1].args[2]) | {"times": {"torch": 1.0}, "errors": {"ours": "refused"}})
    results.add(rows.facts(todo[2].args[2]) | {"skipped": "out of memory"})
    assert [job.args[2] for job in left(*command)] == [todo[3].args[2]]


def test_an_operation_that_came_since_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ct", SimpleNamespace())
    results = Results(tmp_path / "rows.jsonl")
    todo = left("--family", "lrn", "--section", "all", results=results)
    assert len(todo) == 14
    for job in todo:
        row = job.args[2]
        empty = room_for("host", f"host {row}", operation=row) if isinstance(row, str) else rows.facts(row)
        results.add(empty | {"times": {"torch": 1.0}, "errors": {"ours": rows.NOT_THERE}})
    assert left("--family", "lrn", "--section", "all", results=results) == []
    monkeypatch.setattr(rows, "ct", SimpleNamespace(lrn=1))
    assert len(left("--family", "lrn", "--section", "all", results=results)) == 7
    for job in left("--family", "lrn", results=results):
        results.add(rows.facts(job.args[2]) | {"times": {"torch": 1.0, "ours": 1.0}})
    assert left("--family", "lrn", results=results) == []


def test_the_host_section_is_for_the_first_shard() -> None:
    assert len(left("--section", "host")) == len(OPERATIONS)
    assert left("--section", "host", "--shard", "2/3") == []
    assert len(left("--section", "all")) == 466 + len(OPERATIONS)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare", lambda warm_up: None)
    monkeypatch.setattr(run, "about", lambda: {"section": "about", "id": "now", "device": "none"})


@pytest.mark.usefixtures("no_gpu")
def test_a_run_stops_in_time_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(row: Any) -> dict[str, Any]:
        times = {"torch": 40.0, "ours": 20.0}
        return rows.facts(row) | {"times": times, "bytes": 4e7, "floor_us": 10.0}

    file, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    command = ["--rows", str(file), "--json", str(whole), "--family", "grid", "dropout"]
    monkeypatch.setattr(bench, "row_record", measured)
    bench.main([*command, "--seconds", "-1"])
    assert "60 left: run the same command again" in capsys.readouterr().out
    bench.main(command)
    out = capsys.readouterr().out
    assert "torch 40.0, ours 20.0; ours / torch 0.50; floor 10.0; ours / floor 2.00\n" in out
    assert "60 rows, 0 operations on the host\n" in out
    assert "floors at the speed of a copy, 4.00 to 4.00 TB/s" in out
    assert "PASS                0.500 <= 1     ours / torch, dropout (36 rows; forward 0.500" in out
    assert len(read(whole)) == 61
    bench.main(command)
    assert capsys.readouterr().out.startswith("0 to measure")


# --- the report --------------------------------------------------------------------------------------------


def made_up(operation: str = "pool", number: int = 0, floor: float = 10, **times: float) -> dict[str, Any]:
    row = row_of(operation, "fp16-nhwc", number + 1, 3, 8, 8)
    return rows.facts(row) | {"times": times, "bytes": floor * 4e6, "floor_us": floor}


def bar(records: list[dict[str, Any]], name: str) -> Any:
    return next(one for one in report.bars(records) if one.name.startswith(name))


def test_families_are_judged_forward_and_backward_together() -> None:
    records = [
        made_up("pool", torch=100, ours=50),
        made_up("pool_backward", torch=100, ours=80),
        made_up("pool_backward", 1, torch=100),
        made_up("softmax", torch=100, ours=90),
        made_up("lrn", torch=100, ours=10),
    ]
    found = bar(records, "ours / torch, pooling")
    assert (found.value, found.limit, found.count) == (pytest.approx(0.4**0.5), 0.8, 2)
    assert (found.verdict, found.detail) == ("PASS", "forward 0.500, backward 0.800")
    assert bar(records, "ours / torch, softmax").verdict == "MISSED by 12.5 %"
    assert bar(records, "ours / torch, dropout").verdict == "NOT MEASURED"
    limits = {one.name: one.limit for one in report.bars(records)}
    assert [limits[f"ours / torch, {name}"] for name in ("batch normalisation", "reduction")] == [0.9, 1.0]
    assert not any("local response" in name for name in limits)


def test_rows_above_are_listed_with_their_floors() -> None:
    records = [
        made_up(number=1, torch=100, ours=120, floor=110),
        made_up(number=2, torch=100, ours=150, floor=20) | {"remeasured": [1.3, 1.2, 1.4]},
        made_up(number=3, torch=100, ours=150) | {"remeasured": [1.0, 0.9, 1.05]},
        made_up("lrn", number=4, torch=100, ours=50),
    ]
    worst = bar(records, "ours / torch, the worst")
    assert (worst.value, worst.count, worst.detail) == (1.3, 4, "2 above, 1 of them at the floor")
    text = report.render(records)
    assert (
        "rows above 1.1, ours / torch: 2\n   1.30 pool | x3x3x8x8 | fp16-nhwc: torch 100.0, ours 150.0"
        in text
    )
    assert "floor 20.0 (measured again)\n" in text
    assert "ours 120.0, floor 110.0, reached\n" in text + "\n"
    assert "local response normalisation" in text  # in the table, though it has no bar


def test_means_stand_beside_those_over_the_floor() -> None:
    text = report.render([made_up(torch=40, ours=20), made_up(number=1, torch=40, ours=80), made_up("lrn")])
    line = next(line for line in text.splitlines() if line.startswith("  pool"))
    assert line.split() == ["pool", "1.000", "2.00", "2", "4.000", "4.000"]
    assert "floors at the speed of a copy, 4.00 to 4.00 TB/s" in text


def test_each_operation_has_its_bar_of_host_time() -> None:
    def timed(operation: str, **times: float) -> dict[str, Any]:
        return room_for("host", f"host {operation}", operation=operation) | {"times": times}

    records = [timed("pool", torch=10, ours=7, ours_out=6), timed("lrn", torch=10, ours=9)]
    assert bar(records, "host time, pool").value == 0.7
    assert bar(records, "host time, pool").detail == "torch 10.0, ours 7.0, ours_out 6.0 us"
    assert bar(records, "host time, lrn").verdict == "MISSED by 12.5 %"
    assert bar([], "host time").verdict == "NOT MEASURED"
    missing = room_for("host", "host dropout") | {"errors": {"ours": rows.NOT_THERE}}
    assert "host dropout: ours: not there yet" in report.render([*records, missing])


def test_nothing_measured_is_said() -> None:
    assert {one.verdict for one in report.bars([])} == {"NOT MEASURED"}
    assert report.render([]).startswith("0 rows, 0 operations on the host\n")


@pytest.mark.parametrize("name", ["layers.py", "layers_report.py"])
def test_commands_need_no_torch(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    path.write_text(json.dumps(made_up(torch=40, ours=30)) + "\n")
    arguments = ["--help"] if name == "layers.py" else [str(path), "--json", str(whole)]
    command = [sys.executable, "-W", "error", "-X", "importtime", str(BENCHMARKS / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr
    if whole.exists():
        assert json.loads(whole.read_text())["benchmark"] == "layers"
        assert read(whole) == read(path)
    else:
        assert "--family" in done.stdout
