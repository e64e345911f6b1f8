"""Results are right whatever rows the algorithm cache has, and while settings change."""

from __future__ import annotations

import json
import random
import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct._config import SETTINGS, config
from cudnn_ct.autotune.store import store
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops.conv import call
from tests.mixed import in_threads

from .conftest import forget

pytestmark = pytest.mark.usefixtures("fake")

rng = np.random.default_rng(0)
X, W = rng.integers(-3, 4, (2, 4, 6, 5)), rng.integers(-2, 3, (3, 4, 3, 3))
EXPECTED = ct.reference.conv(X.astype(np.float32), W.astype(np.float32))


def convolved(algo: str = "heuristic") -> None:
    y = ct.conv(ct.asarray(X, "float32"), ct.asarray(W, "float32"), algo=algo)
    np.testing.assert_array_equal(y.numpy(), EXPECTED)


STRANGE = (None, True, -1, 2**70, 1e308, "", "NOPE", "graph", [], {}, [[]], {"a": 1}, "x" * 10_000)


@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
def test_conv_computes_when_stored_rows_were_edited(on_disk: Path) -> None:
    """Rows that are JSON and mean nothing, or something else, are checked like any other advice."""
    convolved("autotune")
    rng, good = random.Random(0), store().export()
    for _ in range(30):
        bad = json.loads(json.dumps(good))
        for choice in bad.values():
            row = rng.choice(choice["rows"])
            for name in rng.sample(sorted(row), rng.randint(1, 3)):
                row[name] = rng.choice(STRANGE)
            if rng.random() < 0.2:
                choice["rows"] = rng.choice(STRANGE)
        store().load(bad)
        forget()
        convolved("autotune")


def test_conv_computes_while_other_threads_change_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes each setting as it was at some moment; nothing breaks, and results are right."""
    for name in SETTINGS:
        monkeypatch.setattr(config, name, getattr(config, name))
    done = threading.Event()

    def change() -> None:
        for number in count():
            if done.is_set():
                return
            config.allow_tf32, config.deterministic = bool(number & 1), bool(number & 2)
            config.workspace_limit = None if number & 4 else 2**30
            config.autotune_max_engines = number % 4

    def compute(_: int) -> None:
        for _ in range(30):
            convolved()

    changers = [threading.Thread(target=change) for _ in range(2)]
    for thread in changers:
        thread.start()
    try:
        in_threads(6, compute)
    finally:
        done.set()
        for thread in changers:
            thread.join()
    of_calls = [name for name, setting in SETTINGS.items() if setting.of_calls]
    assert config.snapshot == tuple(getattr(config, name) for name in of_calls)


def test_call_is_not_cached_when_a_setting_changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "deterministic", False)
    request_of = call.request_of

    def meanwhile(*arguments: Any) -> Any:
        config.deterministic = True  # as another thread may
        return request_of(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(call, "request_of", meanwhile)
        convolved()
    here = context.current(streams.default_stream(0))
    assert not here.calls
    convolved()
    assert len(here.calls) == 1
