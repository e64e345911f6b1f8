"""Every C call may fail, and every CUDA call: the tries that are made, and how they judge."""

from __future__ import annotations

import pytest

from cudnn_ct import _handle, _lib
from cudnn_ct.cli import selftest_cases
from cudnn_ct.errors import AllocationError, BadParamError, ExecutionFailedError, NotSupportedError

from .cudnn import FakeCudnn
from .failing import (
    CUDA_CALL,
    STATUSES,
    Bench,
    Found,
    Try,
    covering,
    everything,
    fits,
    returns_status,
    rows,
    run,
    table,
)
from .host import Host


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return run((0, 1), whole=False)


def test_nothing_is_found_wrong(found: list[Found]) -> None:
    assert [one for one in found if one.outcome == "wrong"] == []


def test_every_operation_and_every_class_of_status_is_tried(found: list[Found]) -> None:
    assert {one.operation for one in found} == set(selftest_cases.OPERATIONS)
    tried = {(one.attempt.function, one.attempt.status) for one in found}
    for function in {function for function, status in tried if status != CUDA_CALL}:
        assert returns_status(function)
        assert {status for name, status in tried if name == function} >= set(STATUSES)
    assert {"set_device", "allocate", "copy_from_host", "copy_to_host"} <= {
        f for f, s in tried if s == CUDA_CALL
    }
    assert {one.attempt.warm for one in found} == {False, True}
    assert {one.outcome for one in found} == {"raised", "another way"}


def test_the_covering_part_is_one_of_all() -> None:
    operations = ["a", "a", "b"]
    sites = [Try(row, False, k, f"cudnn{k}", 3000) for row in range(3) for k in (1, 2)]
    sites += [Try(row, True, 1, "allocate", CUDA_CALL) for row in range(3)]
    whole, part = set(everything(sites, operations)), list(covering(sites, operations))
    assert len(whole) == 3 * 2 * len(STATUSES) + 3
    assert set(part) < whole
    assert len(part) == 2 * 2 * len(STATUSES) + 2
    assert {(one.row, one.status) for one in part if one.k == 2 and one.row < 2} > {(0, 1001), (1, 2000)}


def test_what_is_taken_for_right() -> None:
    one = Try(0, False, 1, "cudnnLRN", 2000)
    text = "cudnnLRN returned CUDNN_STATUS_BAD_PARAM (2000): the fake was told to fail"
    assert fits(BadParamError(text, status=2000, function="cudnnLRN"), one)
    assert fits(NotSupportedError(f"no way; refused: {text}"), one)
    assert not fits(NotSupportedError("no way"), one)
    assert not fits(ValueError(text), one)
    one = one._replace(status=5000)
    text = "cudnnLRN returned CUDNN_STATUS_EXECUTION_FAILED (5000)"
    assert fits(ExecutionFailedError(text, status=5000, function="cudnnLRN"), one)
    assert not fits(ExecutionFailedError(text, status=5000, function="cudnnPool"), one)
    assert not fits(NotSupportedError(text, status=5000, function="cudnnLRN"), one)
    short = Try(0, False, 1, "allocate", CUDA_CALL)
    assert fits(AllocationError("out of memory: 1,024 bytes wanted for a workspace"), short)
    assert not fits(AllocationError("out of memory"), short)
    assert not fits(MemoryError("out of memory: 1,024 bytes wanted for a workspace"), short)


@pytest.fixture
def bench(host: Host, fake: FakeCudnn) -> Bench:
    return Bench(host, fake)


def one_try(bench: Bench, function: str, status: int = 4000) -> Try:
    row = next(n for n, case in enumerate(bench.rows) if case.operation == "lrn")
    return next(one for one in bench.tries(row) if one.function == function)._replace(status=status)


def test_a_leak_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = one_try(bench, "cudnnSetTensorNdDescriptor")
    assert bench.attempt(one).outcome == "raised"
    monkeypatch.setattr(_handle, "_destroy", lambda *args: None)
    found = bench.attempt(one)
    assert found.outcome == "wrong"
    assert found.detail.startswith("left: ['handle', 'lrn', 'tensor'")


def test_a_failure_that_is_overlooked_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = one_try(bench, "cudnnLRNCrossChannelForward")
    assert bench.attempt(one).outcome == "raised"
    monkeypatch.setattr(_lib, "error_from_status", lambda *args: UserWarning("no error of ours"))
    assert bench.attempt(one).detail == "UserWarning: no error of ours"
    library = _lib.load()
    library.cudnnLRNCrossChannelForward.errcheck = lambda status, *_: status
    assert bench.attempt(one).detail.startswith("differs by")


def test_the_table_counts() -> None:
    found = [
        Found("lrn", Try(0, False, 1, "cudnnLRN", 2000), "raised"),
        Found("lrn", Try(0, False, 1, "cudnnLRN", 3000), "another way"),
        Found("pool", Try(1, False, 1, "allocate", CUDA_CALL), "wrong", "kept"),
    ]
    assert table(found).splitlines()[2:] == [
        "| `lrn` | 1 | 2 | 1 | 1 | 0 | 0 | 0 | 0 | 0 |",
        "| `pool` | 0 | 0 | 0 | 0 | 1 | 1 | 0 | 0 | 1 |",
        "| all | 1 | 2 | 1 | 1 | 1 | 1 | 0 | 0 | 1 |",
    ]


def test_rows_are_those_of_the_selftest() -> None:
    assert len(rows()) > 400
