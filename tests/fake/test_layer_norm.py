"""Layer normalisation on a cuDNN that computes the variance in one pass: on the fakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._lib import load
from cudnn_ct.cli.selftest import FAILED, OK, attempt
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_rows import Case
from cudnn_ct.legal import rules
from tests.layers import LayerCase, check_layer
from tests.row_norm_cases import row_norm_cases
from tests.strategies import own, placing

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_matmul import OFFSETS

ROWS = 6
FUSED, SEPARATE = 128, 60  # columns with and without an engine that subtracts the mean


@pytest.fixture
def one_pass(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> FakeCudnn:
    """Return the fake as a version whose layer norms lose the variance."""
    rules.forget()
    monkeypatch.setattr(load(), "version", 92700)
    fake.one_pass_norms = fake.engines = True
    return fake


def rows_of_mean(mean: float, columns: int = FUSED) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = mean + rng.standard_normal((ROWS, columns))
    scale, bias = rng.uniform(0.5, 2, columns), rng.standard_normal(columns)
    return tuple(array.astype(np.float32) for array in (x, scale, bias))


def executions(fake: FakeCudnn) -> int:
    return [name for name, _ in fake.calls].count("cudnnBackendExecute")


def check(step: Any, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> None:
    expected = ct.reference.layer_norm(x.astype(np.float64), scale.astype(float), bias.astype(float))
    rounding = np.abs(x).max() * 2.0**-23  # of the mean, in units of the deviation
    np.testing.assert_allclose(step.y.numpy(), expected.y, rtol=0, atol=1e-5 + 4 * rounding)
    if step.mean is not None:
        np.testing.assert_allclose(step.mean.numpy(), expected.mean, rtol=1e-6)
        np.testing.assert_allclose(step.invstd.numpy(), expected.invstd, rtol=1e-5)


@pytest.mark.parametrize("mean", [0, 100, 1000, -10_000])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
@pytest.mark.parametrize("columns", [FUSED, SEPARATE])
def test_layer_norm_has_the_variance_when_the_mean_is_large(
    one_pass: FakeCudnn, mean: float, training: bool, algo: Any, columns: int
) -> None:
    operands = rows_of_mean(mean, columns)
    check(ct.layer_norm(*map(ct.asarray, operands), training=training, algo=algo), *operands)


@pytest.mark.parametrize("columns", [FUSED, SEPARATE])
def test_layer_norm_writes_shifted_results_to_out(one_pass: FakeCudnn, columns: int) -> None:
    operands = rows_of_mean(1000, columns)
    out = ct.empty((ROWS, columns)), ct.empty((2 * ROWS, 1))[::2], ct.empty((ROWS, 1))
    step = ct.layer_norm(*map(ct.asarray, operands), out=out)
    assert step.mean.pointer == out[1].pointer
    check(step, *operands)


@pytest.mark.parametrize("columns", [FUSED, SEPARATE])
def test_layer_norm_of_misaligned_operands_is_shifted_on_copies(
    one_pass: FakeCudnn, host: Host, columns: int
) -> None:
    operands = rows_of_mean(1000, columns)
    place = placing(lambda array: ForeignArray(host, array), 1, 2, 3)
    check(ct.layer_norm(*map(place, operands)), *operands)


def test_ada_layer_norm_of_one_sample_is_shifted(one_pass: FakeCudnn) -> None:
    x, scale, bias = rows_of_mean(1000)
    step = ct.ada_layer_norm(*(ct.asarray(array[None]) for array in (x, scale, bias)))
    check(step._replace(y=step.y[0], mean=step.mean[0], invstd=step.invstd[0]), x, scale, bias)


def test_shifted_layer_norm_of_64_columns_has_no_copy_of_x(one_pass: FakeCudnn) -> None:
    operands = [ct.asarray(array) for array in rows_of_mean(1000)]
    ct.layer_norm(*operands, workspace_limit=operands[0].nbytes // 2)
    assert ct.last_plan().workspace < operands[0].nbytes
    assert executions(one_pass) == 2


def test_layer_norm_subtracts_the_mean_by_a_graph_without_legacy_calls(one_pass: FakeCudnn) -> None:
    one_pass.fail = {"cudnnCreateOpTensorDescriptor": 3009}
    operands = rows_of_mean(1000, SEPARATE)
    check(ct.layer_norm(*map(ct.asarray, operands)), *operands)
    assert executions(one_pass) == 3
    assert "cudnnOpTensor" not in [name for name, _ in one_pass.calls]


def test_layer_norm_runs_the_engine_once_in_versions_without_the_defect(fake: FakeCudnn) -> None:
    ct.layer_norm(*map(ct.asarray, rows_of_mean(0)))
    assert executions(fake) == 1


@pytest.mark.parametrize("parameters", ["bfloat16", "float32"])
@pytest.mark.parametrize("columns", [FUSED, SEPARATE])
def test_shifted_half_precision_keeps_the_digits_of_the_statistics(
    one_pass: FakeCudnn, columns: int, parameters: str
) -> None:
    """The difference from the mean is not rounded to the dtype of x."""
    x, scale, bias = rows_of_mean(100, columns)
    given = [ct.asarray(x, "bfloat16"), ct.asarray(scale, parameters), ct.asarray(bias, parameters)]
    step = ct.layer_norm(*given)
    rounded = [array.astype("float32").numpy().astype(float) for array in given]
    expected = ct.reference.layer_norm(*rounded)
    np.testing.assert_allclose(step.invstd.numpy(), expected.invstd, rtol=1e-5)
    np.testing.assert_allclose(step.y.astype("float32").numpy(), expected.y, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("columns", [FUSED, SEPARATE])
def test_shifted_layer_norm_is_captured(one_pass: FakeCudnn, columns: int) -> None:
    operands = rows_of_mean(1000, columns)
    step, arrays = ct.capture(ct.layer_norm), [ct.asarray(array) for array in operands]
    for _ in range(3):
        check(step(*arrays), *operands)


def large_means() -> list[Case]:
    return [case for case in cases() if case.variant == "large mean"]


@pytest.mark.parametrize("case", large_means(), ids=lambda case: f"{case.operation} {case.layout}")
def test_selftest_of_large_means_succeeds(one_pass: FakeCudnn, case: Case) -> None:
    assert attempt(case).verdict == OK


def test_selftest_finds_a_variance_of_one_pass(one_pass: FakeCudnn) -> None:
    with testing.without_facts("layer-norm-variance"):
        wrong = [case.operation for case in large_means() if attempt(case).verdict == FAILED]
    assert wrong == ["layer_norm"]


@settings(max_examples=60)
@given(case=row_norm_cases(), offsets=OFFSETS)
def test_row_norm_equals_reference_on_a_version_with_the_defect(
    one_pass: FakeCudnn, host: Host, case: LayerCase, offsets: tuple[int, ...]
) -> None:
    for place in (own, lambda array: ForeignArray(host, array)):
        check_layer(case, placing(place, *offsets))


@pytest.mark.parametrize(("columns", "nodes"), [(FUSED, [2, 1]), (SEPARATE, [1])])
def test_layer_norm_on_shapes_records_the_graphs_of_both_runs(
    one_pass: FakeCudnn, columns: int, nodes: list[int]
) -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        ct.layer_norm(ct.zeros((4, columns)), ct.zeros(columns), ct.zeros(columns))
    assert [len(request.graph.nodes) for request in recorded.requests.values()] == nodes
    assert not any(request.choice for request in recorded.requests.values())


def test_graph_with_a_layer_norm_warns_once(one_pass: FakeCudnn) -> None:
    def build() -> None:
        g = ct.Graph()
        norm = g.layer_norm(*(g.input(shape, "float32") for shape in ((4, 64), (64,), (64,))))
        g.build(norm).prepare()

    with pytest.warns(ct.CudnnWarning, match="layer normalisation computes .* subtract the means"):
        build()
    build()
