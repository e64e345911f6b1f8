"""First results of engines, compared with a second opinion. On the fakes, with engines that are wrong."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import cudnn_ct as ct
from cudnn_ct import _lib, testing
from cudnn_ct.autotune.candidates import CandidateSet
from cudnn_ct.certify import certificates, opinions
from cudnn_ct.cli.cache import report_command as command
from cudnn_ct.cuda import memory
from cudnn_ct.errors import CudnnWarning, NotSupportedError
from cudnn_ct.graph.plan_store import _imported, folder_store
from cudnn_ct.ops.graph.lower import lowered
from tests.fusion_cases import FUSIONS
from tests.mixed import in_threads

from .cudnn import FakeCudnn

X = np.linspace(-2, 3, 30).reshape(2, 3, 5).astype(np.float32)


@pytest.fixture(autouse=True)
def _two_engines(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engines, fake.second_engine = True, 7
    monkeypatch.setattr(ct.config, "certify", "new")


@pytest.fixture
def imported() -> Any:
    yield
    _imported.clear()


def built(shape: tuple[int, ...] = X.shape, **options: Any) -> ct.BuiltGraph[Any]:
    g = ct.Graph()
    x = g.input(shape, name="x")
    return g.build(g.relu(x) * x, **options)


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) * x


def check(f: ct.BuiltGraph[Any]) -> None:
    """Call a graph, and compare its result."""
    np.testing.assert_allclose(f(ct.asarray(X)).numpy(), expected(X), rtol=1e-6)


def certificate(f: ct.BuiltGraph[Any]) -> str:
    """Return the line about the certificate in the description of a graph."""
    lines = [line.strip() for line in f.describe().splitlines()]
    found = [line for line in lines if "certified" in line or "node by node:" in line]
    return found[0] if found else ""


def test_first_result_is_right_when_the_first_engine_is_wrong(fake: FakeCudnn) -> None:
    fake.wrong_engines = frozenset({0})
    f = built()
    message = "engine 0 of cuDNN computes a wrong result for a graph of relu_fwd"
    with pytest.warns(CudnnWarning, match=message):
        check(f)
    assert "rejected: graph engine 0" in f.describe()
    assert certificate(f) == "certified: agrees with node by node"
    fake.executed.clear()
    check(f)
    assert fake.executed == [7]


def test_first_engine_is_kept_when_the_second_one_is_wrong(fake: FakeCudnn) -> None:
    fake.wrong_engines = frozenset({7})
    f = built()
    with pytest.warns(CudnnWarning, match="engine 7 of cuDNN computes a wrong result"):
        check(f)
    assert f.candidate.algorithm == "engine 0"


@pytest.mark.parametrize("second", [None, 7])
def test_graph_is_computed_node_by_node_when_all_engines_are_wrong(
    fake: FakeCudnn, second: int | None
) -> None:
    fake.second_engine, fake.wrong_engines = second, frozenset({0, 7})
    f = built()
    if second is not None:  # engines that agree are believed, so these must differ
        fake.errors = {0: 1.0, 7: 2.0}
    with pytest.warns(CudnnWarning, match=r"engine \d of cuDNN computes a wrong result"):
        check(f)
    assert "computed node by node" in f.describe()
    np.testing.assert_allclose(f(ct.asarray(2 * X)).numpy(), expected(2 * X), rtol=1e-6)


def test_winner_is_measured_when_results_must_be_deterministic(fake: FakeCudnn) -> None:
    fake.wrong_engines = frozenset({0})
    f = built(deterministic=True)
    with pytest.warns(CudnnWarning, match="engine 0 of cuDNN computes a wrong result"):
        check(f)
    assert fake.executed.count(7) > certificates.RUNS


def test_same_engine_with_other_knobs_is_no_second_opinion(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.second_engine, fake.wrong_engines = None, frozenset({0})
    known = CandidateSet.viable

    def with_other_knobs(self: CandidateSet, *arguments: Any) -> Any:
        for row in known(self, *arguments):
            yield row
            yield row._replace(algorithm="engine 0 knobs 2=1")

    monkeypatch.setattr(CandidateSet, "viable", with_other_knobs)
    with pytest.warns(CudnnWarning, match="engine 0 of cuDNN computes a wrong result"):
        check(built())


def test_warm_calls_run_one_engine_once(fake: FakeCudnn) -> None:
    f = built()
    check(f)
    assert certificate(f) == "certified: agrees with engine 7"
    fake.executed.clear()
    check(f)
    assert fake.executed == [0]


def test_certificate_serves_other_graphs_of_the_structure(fake: FakeCudnn) -> None:
    check(built())
    fake.executed.clear()
    f = built((2, 3, 9))  # 54 elements: even, and of the same magnitude as 30
    f(ct.asarray(np.ones((2, 3, 9), np.float32)))
    assert fake.executed == [0]
    assert certificate(f) == "certified: agrees with engine 7"


def test_wrong_engine_is_rejected_by_a_second_process(fake: FakeCudnn, on_disk: Path) -> None:
    fake.wrong_engines = frozenset({0})
    with pytest.warns(CudnnWarning, match="wrong result"):
        check(built())
    testing.reset()
    fake.executed.clear()
    f = built()
    check(f)
    assert fake.executed == [7]
    assert "rejected: graph engine 0" in f.describe()


def test_certificates_travel_with_exported_plans(
    fake: FakeCudnn, on_disk: Path, tmp_path: Path, imported: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ct.config, "plan_cache", True)
    check(built())
    ct.export_plans(tmp_path / "plans")
    testing.reset()
    folder_store().clear()
    assert certificates.find("anything") is None
    ct.import_plans(tmp_path / "plans")
    fake.executed.clear()
    check(built())
    assert fake.executed == [0]


def test_damaged_certificate_is_ignored_with_one_warning(fake: FakeCudnn, on_disk: Path) -> None:
    check(built())
    (file,) = (on_disk / "plans").glob("*.plan_1")
    file.write_bytes(file.read_bytes()[:-3] + b"}}}")
    testing.reset()
    fake.executed.clear()
    with pytest.warns(CudnnWarning, match="ignored: the hash does not match"):
        check(built())
    assert len(fake.executed) == 3  # compared again


@pytest.mark.parametrize(
    ("setting", "runs", "expected"),
    [
        ((memory, "memory_info", lambda device: (10, 10)), 1, "not certified: a comparison needs .*"),
        ((ct.config, "certify_seconds", 0), 2, "not certified: no second opinion within 0 s"),
        ((ct.config, "certify", "off"), 1, ""),
    ],
    ids=["memory", "time", "off"],
)
def test_engine_runs_alone_when_nothing_is_compared(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, setting: Any, runs: int, expected: str
) -> None:
    monkeypatch.setattr(*setting)
    f = built()
    check(f)
    assert fake.executed == [0] * runs
    assert re.fullmatch(expected, certificate(f))


def test_named_engine_is_not_compared_unless_all_are(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(built(algo="engine 0"))
    assert fake.executed == [0]
    monkeypatch.setattr(ct.config, "certify", "all")
    check(built(algo="engine 0"))
    assert len(fake.executed) == 4


@pytest.mark.parametrize("which", ["new", "all"])
def test_first_result_of_online_calls_is_compared(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(ct.config, "certify", which)
    f = built(algo="online")
    check(f)
    assert fake.executed == [0, 7, 0]
    assert "agrees with engine 7" in certificate(f)
    for _ in range(4):
        check(f)
    assert "settled" in f.describe()


def test_result_with_one_value_is_no_evidence(fake: FakeCudnn) -> None:
    f = built()
    f(ct.asarray(np.zeros_like(X)))
    assert certificate(f) == "not certified: its result agrees with engine 7, but has one value alone"
    fake.executed.clear()
    g = built()
    g(ct.asarray(X))
    assert len(fake.executed) == 3


def test_operand_and_result_see_one_run() -> None:
    f, x = built(), ct.asarray(X)
    out = ct.asarray(np.full(X.shape, 7, np.float32))
    f(x, out=out)
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_allclose(out.numpy(), expected(X), rtol=1e-6)


def test_threads_compare_once(fake: FakeCudnn) -> None:
    f = built()

    def call(_: int) -> None:
        check(f)

    in_threads(4, call)
    assert fake.executed.count(7) == 1


def test_difference_behind_a_rough_node_may_be_rare() -> None:
    def compare(wrong: int, mode: str) -> str:
        g = ct.Graph()
        x = g.input((1, 1000))
        f = g.build(getattr(g, mode)(x) * x)
        a = np.ones(1000, np.float32)
        b = a.copy()
        b[:wrong] = 0
        graph = lowered(f.problem)
        return opinions.difference_of_graphs(
            graph, f.problem.results, [a.view(np.uint8)], [b.view(np.uint8)], 1e-3
        )

    assert not compare(20, "floor")
    assert compare(21, "floor")
    assert compare(1, "relu")


def structure(rows: int, columns: int, dtype: str = "float32", **keywords: Any) -> str:
    g = ct.Graph()
    x, w = g.input((rows, columns), dtype, **keywords), g.input((columns, 8), dtype)
    return certificates.structure_of(lowered(g.build(g.relu(x) @ w).problem))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1023, 515, True),
        (1024, 576, False),  # 1024 is in the next octave
        (768, 576, True),
        (1024, 1023, False),
        (64, 68, False),  # 4 modulo 8
        (64, 4096, False),
        (1, 3, False),
    ],
)
def test_structure_depends_on_classes_of_lengths(one: int, other: int, same: bool) -> None:
    assert (structure(16, one) == structure(16, other)) == same


def test_structure_depends_on_dtype_and_layout() -> None:
    assert structure(16, 32) != structure(16, 32, "float16")
    assert structure(16, 32) != structure(16, 32, strides=(1, 16))


def test_undecided_difference_is_reported(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise NotSupportedError("no nodes today")

    monkeypatch.setattr("cudnn_ct.certify.opinions.nodewise_plan", fail)
    fake.wrong_engines = frozenset({7})
    f = built()
    with pytest.warns(CudnnWarning, match="engine 0 and engine 7 of cuDNN compute different results"):
        check(f)
    assert certificate(f).startswith("not certified: its result differs from that of engine 7")


def test_report_lists_wrong_engines(fake: FakeCudnn, on_disk: Path) -> None:
    fake.wrong_engines = frozenset({0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(built())
    (row,) = certificates.wrong_engines()
    assert row["engine"] == "engine 0"
    assert row["graph"]["nodes"]
    assert "its result differs" in row["finding"]


def test_report_command_writes_wrong_engines(fake: FakeCudnn, on_disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = CliRunner().invoke(command, [str(path)])
    assert done.output.startswith("no engine has computed a wrong result")
    assert not path.exists()
    fake.wrong_engines = frozenset({0})
    with pytest.warns(CudnnWarning, match="wrong result"):
        check(built())
    done = CliRunner().invoke(command, [str(path)])
    assert done.exit_code == 0
    assert "1 written to" in done.output
    (row,) = json.loads(path.read_text())["engines"]
    assert row["engine"] == "engine 0"
    assert str(on_disk) not in path.read_text()


def test_a_certificate_of_another_cuda_is_not_used(monkeypatch: pytest.MonkeyPatch, on_disk: Path) -> None:
    check(built())
    testing.reset()
    monkeypatch.setattr(_lib.load(), "build", "cuDNN 9.19.0 for CUDA 12")
    check(built())
    keys = [entry.key.split(" | ") for entry in folder_store().entries()]
    builds = [build for kind, build, *_ in keys if kind == certificates.PREFIX]
    assert sorted(builds) == ["cuDNN 9.19.0 for CUDA 12", "cuDNN 9.19.0 for CUDA 13"]


def test_a_shipped_certificate_saves_the_comparison(monkeypatch: pytest.MonkeyPatch, on_disk: Path) -> None:
    check(built())
    (key,) = [key for key, found in certificates._known.items() if found.verdict == "right"]
    monkeypatch.setattr(certificates, "_shipped", lambda: {certificates.digest(key)})
    folder_store().clear()
    testing.reset()
    f = built()
    check(f)
    assert certificate(f) == "certified: it agreed when it was tested for this package"
    monkeypatch.setattr(certificates, "_shipped", set)
    testing.reset()
    f = built()
    check(f)
    assert certificate(f).startswith("certified: agrees with ")


def test_the_tool_calls_each_training_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.certificates import run

    called = []
    for name in FUSIONS:
        monkeypatch.setattr(ct, name, _noted(getattr(ct, name), called))
    run(2, 8, 16, 3, 1, 5)
    assert set(called) == set(FUSIONS)


def _noted(function: Any, called: list[str]) -> Any:
    def call(*operands: Any, **options: Any) -> Any:
        result = function(*operands, **options)
        called.append(function.__name__)
        return result

    return call
