"""Errors of kernels, which are reported late: their notes, with and without ``config.debug_sync``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._config import config
from cudnn_ct.cuda import launch_log
from tests.unit.cuda_driver import CUresult

from .conftest import forget
from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .test_conv import images


@pytest.fixture
def debug(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    config.debug_sync = True
    forget()
    yield fake
    config.debug_sync = False


def fail_at_next_wait(host: Host) -> None:
    host.failing["cuStreamSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS


def test_calls_do_not_synchronize_when_debug_is_off(fake: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    host.calls.clear()
    ct.softmax(x)
    assert "cuStreamSynchronize" not in host.calls
    assert "cudnnGetStream" not in fake.names()


def test_debug_names_the_failing_call(debug: FakeCudnn, host: Host) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    ct.softmax(x)
    expected = ct.conv(x, w)
    fail_at_next_wait(host)
    with pytest.raises(ct.ExecutionFailedError) as caught:
        ct.conv(x, w, stride=2, algo="none", strict=True)
    assert caught.value.function == "cudnnConvolutionForward"
    culprit = "cudnnConvolutionForward(1.0, <TensorDescriptor float32[2, 3, 5, 6] nchw>, 0x"
    assert str(caught.value).startswith(culprit)
    stream = "Stream(legacy default, device=0)"
    assert f"failed on the device: synchronizing {stream} failed: CUDA_ERROR_ILL" in str(caught.value)
    history, where = caught.value.__notes__
    assert history.startswith(f"launched before on {stream}, the latest last:\n")
    assert "\n  cudnnSoftmaxForward(" in history
    assert history.splitlines()[-1].strip().startswith(culprit)
    host.failing.clear()
    assert where.startswith("in forward convolution: x float32[2, 3, 5, 6]")
    np.testing.assert_array_equal(ct.conv(x, w).numpy(), expected.numpy())


def test_launch_log_is_per_stream_and_bounded(debug: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    for _ in range(30):
        ct.softmax(x)
    for stream in (0x40, 0x50):
        ct.softmax(x, stream=stream)
    fail_at_next_wait(host)
    with pytest.raises(ct.ExecutionFailedError) as caught:
        ct.synchronize(0x40)
    assert caught.value.__notes__[0].count("cudnnSoftmaxForward(") == 1
    assert len(launch_log._history) == launch_log._history.maxlen == 32


def test_debug_error_names_other_work_when_nothing_was_launched(debug: FakeCudnn, host: Host) -> None:
    with ct.use(stream=0x50):
        fail_at_next_wait(host)
        with pytest.raises(ct.ExecutionFailedError) as caught:
            ct.synchronize()
    (note,) = caught.value.__notes__
    assert note.startswith("launched before on Stream(0x50, device=0): no recorded launches. The failed work")


def test_debug_synchronizes_after_dropout_seeding(debug: FakeCudnn, host: Host) -> None:
    """Random states are initialised on the device, by a function whose first argument is the descriptor."""
    host.calls.clear()
    ct.DropoutState(0.5, seed=1)
    launches = [line for _, line in launch_log._history]
    calls = [line.split("(")[0] for line in launches if line.startswith("cudnn")]
    assert calls == ["cudnnSetDropoutDescriptor"]
    assert host.calls.count("cuStreamSynchronize") == len(launches)


def test_debug_does_not_synchronize_a_capture(debug: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    ct.softmax(x, stream=0x60)
    host.capturing.add(0x60)
    host.calls.clear()
    ct.softmax(x, stream=0x60)
    assert "cuStreamSynchronize" not in host.calls


def test_debug_does_not_store_timings(debug: FakeCudnn, on_disk: Path, tmp_path: Path) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    ct.conv(x, w, algo="autotune")
    assert not ct.export_algo_cache(tmp_path / "out.json")


def test_debug_reports_a_missing_function(debug: FakeCudnn) -> None:
    debug.missing.add("cudnnSoftmaxForward")
    missing = pytest.raises(ct.VersionMismatchError, match="missing from this cuDNN")
    with testing.install(FakeLibrary(debug)), missing:
        ct.softmax(images(2, 3))
