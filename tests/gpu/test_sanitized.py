"""The tests that `tools/sanitizer.py` runs: each operation, and memory that is freed early.

Every array is an allocation of its own here, so that an access past its end is reported.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cli.selftest import FAILED, attempt
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_rows import Case
from cudnn_ct.cuda import allocator

from .conftest import own_stream, place

# The first row of each operation, for two dtypes and layouts with different implementations.
SLICE: dict[tuple[str, str], Case] = {}
for case in cases():
    if (case.dtype, case.layout) in (("float32", "nchw"), ("float16", "nhwc")):
        SLICE.setdefault((case.operation, case.dtype), case)


@pytest.fixture(autouse=True)
def _an_allocation_for_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MAX_BLOCK", -1)


@pytest.mark.parametrize("case", SLICE.values(), ids=lambda case: f"{case.name}-{case.dtype}")
def test_operation_stays_within_its_arrays(case: Case) -> None:
    outcome = attempt(case)
    assert outcome.verdict != FAILED, outcome


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
def test_operations_stay_within_views_with_gaps() -> None:
    memory = np.full((2, 8, 11, 13), np.nan, np.float32)
    x = memory[:, ::2, 1:-1, 1:-1]
    x[...] = np.random.default_rng(0).integers(-3, 4, x.shape)
    w = np.random.default_rng(1).integers(-2, 3, (3, 4, 3, 3)).astype(np.float32)
    y = ct.conv(place(x), ct.asarray(w), padding=1)
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x, w, padding=1))
    np.testing.assert_array_equal(ct.pool(place(x), window=2).numpy(), ct.reference.pool(x, window=2))


def test_arrays_are_freed_after_the_work_of_another_stream() -> None:
    side, w = own_stream(), ct.full((8, 8, 3, 3), 1.0)
    for _ in range(20):
        x = ct.full((4, 8, 30, 30), 1.0)
        y = ct.conv(x, w, stream=side)
        del x
        z = ct.softmax(y)
        del y
        ct.full((4, 8, 30, 30), np.nan)
    gc.collect()
    assert np.isfinite(z.numpy()).all()
