"""The package on a fake cuDNN and on host memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct._config import config
from cudnn_ct.ops.conv import legacy
from tests.layers import Place

from .cudnn import FakeCudnn, FakeLibrary
from .host import ForeignArray, Host
from .installed import cudnn_installed, forget, host_installed

__all__ = ["fake", "forget", "host", "jit"]


@pytest.fixture
def host() -> Iterator[Host]:
    gc.collect()
    gc.freeze()  # the fakes collect garbage several times in a test: only what the test makes
    with host_installed() as host:
        yield host


@pytest.fixture
def fake(host: Host) -> Iterator[FakeCudnn]:
    with cudnn_installed(host) as cudnn:
        yield cudnn


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the algorithm cache, which is on."""
    path = tmp_path / "algo_cache"
    monkeypatch.setattr(config, "algo_cache", str(path))
    return path


@pytest.fixture
def only_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions have no legacy call."""
    monkeypatch.setattr(legacy, "_why_not", lambda _: "this test has no legacy calls")


@pytest.fixture
def place(fake: FakeCudnn, host: Host) -> Place:
    """Return a function that puts a NumPy array on the device, as another library would."""
    return lambda array: ForeignArray(host, array)


@pytest.fixture
def with_word(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the kernels of the fake one more parameter, a function of the others, which they may check."""
    deferred = FakeCudnn._deferred

    def set_word(function: Callable[[list[int]], int], check: bool = False) -> None:
        def longer(self: FakeCudnn, *given: Any) -> Any:
            work, words = deferred(self, *given)

            def run(words: list[int]) -> None:
                assert not check or words[-1] == function(words[:-1])
                work(words[:-1])

            return run, [*words, function(words)]

        monkeypatch.setattr(FakeCudnn, "_deferred", longer)

    return set_word


@pytest.fixture
def jit(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    """A cuDNN of the small set of libraries: it has engines, and no legacy calls."""
    monkeypatch.setattr(FakeLibrary, "kind", "jit")
    with cudnn_installed(host) as cudnn:
        cudnn.engines, cudnn.one_channel = True, False
        yield cudnn
