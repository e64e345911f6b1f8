"""Every C call and every CUDA call may fail: the tries, and tests of their judgement."""

from __future__ import annotations

import pytest

from cudnn_ct import _handle, _lib
from cudnn_ct.cli import selftest_cases

from .cudnn import FakeCudnn
from .failing import CUDA_CALL, STATUSES, Bench, Found, Try, run
from .host import Host


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return run((0, 1), whole=False)


def test_a_share_of_failing_calls_raises_or_falls_back() -> None:
    found = run((0, 16), whole=False, rows=5)
    assert [one for one in found if one.outcome == "wrong"] == []
    assert {one.outcome for one in found} == {"raised", "another way"}


@pytest.mark.nightly
def test_every_failing_call_raises_or_falls_back(found: list[Found]) -> None:
    assert [one for one in found if one.outcome == "wrong"] == []


@pytest.mark.nightly
def test_matrix_covers_operations_functions_and_statuses(found: list[Found]) -> None:
    assert {one.operation for one in found} == set(selftest_cases.OPERATIONS)
    tried = {(one.attempt.function, one.attempt.status) for one in found}
    for function in {function for function, status in tried if status != CUDA_CALL}:
        assert {status for name, status in tried if name == function} >= set(STATUSES)
    assert {"cuCtxSetCurrent", "cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"} <= {
        f for f, s in tried if s == CUDA_CALL
    }
    assert {one.attempt.warm for one in found} == {False, True}
    assert {one.outcome for one in found} == {"raised", "another way"}


@pytest.fixture
def bench(host: Host, fake: FakeCudnn) -> Bench:
    return Bench(host, fake)


def one_try(bench: Bench, function: str, status: int = 4000) -> Try:
    row = next(n for n, case in enumerate(bench.rows) if case.operation == "lrn")
    return next(one for one in bench.tries(row) if one.function == function)._replace(status=status)


def test_matrix_finds_a_leak(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = one_try(bench, "cudnnSetTensorNdDescriptor")
    assert bench.attempt(one).outcome == "raised"
    monkeypatch.setattr(_handle, "destroy_native", lambda *args: None)
    found = bench.attempt(one)
    assert found.outcome == "wrong"
    assert found.detail.startswith("left: ['handle', 'lrn', 'tensor'")


def test_matrix_finds_an_ignored_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = one_try(bench, "cudnnLRNCrossChannelForward")
    assert bench.attempt(one).outcome == "raised"
    monkeypatch.setattr(_lib, "error_from_status", lambda *args: UserWarning("no error of ours"))
    assert bench.attempt(one).detail == "UserWarning: no error of ours"
    library = _lib.load()
    library.cudnnLRNCrossChannelForward.errcheck = lambda status, *_: status
    assert "differs by" in bench.attempt(one).detail
