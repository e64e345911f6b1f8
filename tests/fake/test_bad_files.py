"""Whatever is wrong with the algorithm cache, results are right, and at most one warning is given."""

from __future__ import annotations

import json
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _config, context, testing
from cudnn_ct._config import SETTINGS, config
from cudnn_ct.autotune.store import Store
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnWarning
from cudnn_ct.ops.conv import call
from tests.mixed import in_threads

from .cudnn import FakeCudnn

rng = np.random.default_rng(0)
CASES = [
    (
        rng.integers(-3, 4, (2, 4, 6, size)).astype(np.float32),
        rng.integers(-2, 3, (3, 4, 3, 3)).astype(np.float32),
    )
    for size in (5, 6, 7)
]
EXPECTED = [ct.reference.conv(x, w) for x, w in CASES]


@pytest.fixture
def path(tmp_path: Path, fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the timed choices for all cases."""
    testing.reset()
    monkeypatch.setattr(config, "algo_cache", tmp_path / "choices")
    assert convolved() == []
    assert len(Store(tmp_path / "choices").export()) == len(CASES)
    return tmp_path / "choices"


def convolved() -> list[str]:
    """Time and compute all cases as a process does that has just begun; what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        testing.reset()
        for (x, w), expected in zip(CASES, EXPECTED, strict=True):
            y = ct.conv(ct.asarray(x), ct.asarray(w), algo="autotune")
            np.testing.assert_array_equal(y.numpy(), expected)
    assert {warning.category for warning in seen} <= {CudnnWarning}
    return [str(warning.message) for warning in seen]


STRANGE = (None, True, -1, 2**70, 1e308, "", "NOPE", "graph", [], {}, [[]], {"a": 1}, "x" * 10_000)


def test_conv_computes_when_cached_rows_were_edited(path: Path) -> None:
    """Rows that are JSON and mean nothing, or something else: they are advice, and judged like any other."""
    rng, good = random.Random(0), Store(path).export()
    for _ in range(12):
        bad = json.loads(json.dumps(good))
        for choice in bad.values():
            row = rng.choice(choice["rows"])
            for name in rng.sample(sorted(row), rng.randint(1, 3)):
                row[name] = rng.choice(STRANGE)
            if rng.random() < 0.2:
                choice["rows"] = rng.choice(STRANGE)
        Store(path).load(bad)
        assert len(convolved()) <= 1, bad
        Store(path).load(good)


def test_conv_computes_while_other_threads_change_settings(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes each setting as it was at some moment; nothing breaks, and results are right."""
    for name in SETTINGS:
        monkeypatch.setattr(config, name, getattr(config, name))
    done = threading.Event()

    def change() -> None:
        values: Iterator[Any] = iter(range(10**9))
        while not done.is_set():
            number = next(values)
            config.allow_tf32, config.deterministic = bool(number & 1), bool(number & 2)
            config.workspace_limit = None if number & 4 else 2**30
            config.autotune_max_engines = number % 4

    def compute(_: int) -> None:
        for _ in range(10):
            for (x, w), expected in zip(CASES, EXPECTED, strict=True):
                np.testing.assert_array_equal(ct.conv(ct.asarray(x), ct.asarray(w)).numpy(), expected)

    changers = [threading.Thread(target=change) for _ in range(2)]
    for thread in changers:
        thread.start()
    try:
        in_threads(6, compute)
    finally:
        done.set()
        for thread in changers:
            thread.join()
    assert config.snapshot == tuple(getattr(config, name) for name in _config._OF_CALLS)


def test_call_is_not_cached_when_a_setting_changed_meanwhile(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = map(ct.asarray, CASES[0])
    monkeypatch.setattr(config, "deterministic", False)
    request_of = call.request_of

    def meanwhile(*arguments: Any) -> Any:
        config.deterministic = True  # as another thread may
        return request_of(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(call, "request_of", meanwhile)
        np.testing.assert_array_equal(ct.conv(x, w).numpy(), EXPECTED[0])
    here = context.current(streams.default_stream(0))
    assert not here.calls
    ct.conv(x, w)
    assert len(here.calls) == 1
