"""Faults of the device show later than they happen: what the error then says, with and without a watch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._config import config
from cudnn_ct.cuda import launch_log

from .conftest import forget
from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .test_conv import images


@pytest.fixture
def debug(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    monkeypatch.setattr(launch_log, "_history", {})
    config.debug_sync = True
    forget()
    yield fake
    config.debug_sync = False


def test_error_names_the_debug_setting_when_it_is_off(fake: FakeCudnn, host: Host) -> None:
    ct.softmax(images(2, 3))
    host.calls.clear()
    host.fail_at = 2  # after `set_device`
    with pytest.raises(ct.ExecutionFailedError) as caught:
        ct.synchronize()
    (note,) = caught.value.__notes__
    assert "with CUDNN_CT_DEBUG_SYNC=1 each operation is waited for" in note


def test_calls_do_not_synchronize_when_debug_is_off(fake: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    host.calls.clear()
    ct.softmax(x)
    assert "synchronize" not in host.calls
    assert "cudnnGetStream" not in fake.names()


def test_debug_names_the_failing_call(debug: FakeCudnn, host: Host) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    ct.softmax(x)
    host.calls.clear()
    expected = ct.conv(x, w)
    waits = [k for k, name in enumerate(host.calls, 1) if name == "synchronize"]
    host.fail_at = len(host.calls) + waits[-1]
    with pytest.raises(ct.ExecutionFailedError) as caught:
        ct.conv(x, w, stride=2, algo="none", strict=True)
    assert caught.value.function == "cudnnConvolutionForward"
    culprit = "cudnnConvolutionForward(1.0, <TensorDescriptor float32[2, 3, 5, 6] nchw>, 0x"
    assert str(caught.value).startswith(culprit)
    assert "failed on the device: synchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS" in str(caught.value)
    told, where = caught.value.__notes__
    assert told.startswith(
        "launched before on Stream(legacy default, device=0), the latest last:\n  cudnnSoft"
    )
    assert told.splitlines()[-1].strip().startswith(culprit)
    assert where.startswith("in forward convolution: x float32[2, 3, 5, 6]")
    np.testing.assert_array_equal(ct.conv(x, w).numpy(), expected.numpy())


def test_launch_log_is_per_stream_and_bounded(debug: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    for _ in range(3):
        ct.softmax(x, stream=0x40)
    for _ in range(2 * launch_log.MAX_LAUNCHES):
        ct.softmax(x)
    lengths = {stream.handle: len(ring) for stream, ring in launch_log._history.items()}
    assert lengths == {1: launch_log.MAX_LAUNCHES, 0x40: 3}
    for handle in range(0x100, 0x100 + 2 * launch_log.MAX_STREAMS):
        ct.softmax(x, stream=handle)
    assert testing.cache_sizes()["launch histories"].entries == launch_log.MAX_STREAMS


def test_debug_error_names_other_work_when_nothing_was_launched(debug: FakeCudnn, host: Host) -> None:
    with ct.use(stream=0x50):
        host.calls.clear()
        host.fail_at = 2
        with pytest.raises(ct.ExecutionFailedError) as caught:
            ct.synchronize()
    (note,) = caught.value.__notes__
    assert note.startswith("launched before on Stream(0x50, device=0): no recorded launches. The failed work")


def test_debug_synchronizes_after_dropout_seeding(debug: FakeCudnn, host: Host) -> None:
    """Random states are initialised on the device, by a function whose first argument is the descriptor."""
    host.calls.clear()
    ct.DropoutState(0.5, seed=1)
    (ring,) = launch_log._history.values()
    assert [line.split("(")[0] for line in ring if line.startswith("cudnn")] == ["cudnnSetDropoutDescriptor"]
    assert host.calls.count("synchronize") == len(ring)


def test_debug_does_not_synchronize_a_capture(debug: FakeCudnn, host: Host) -> None:
    x = images(2, 3)
    ct.softmax(x, stream=0x60)
    host.capturing.add(0x60)
    host.calls.clear()
    ct.softmax(x, stream=0x60)
    assert "synchronize" not in host.calls


def test_debug_does_not_store_timings(debug: FakeCudnn, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(config, "algo_cache", str(tmp_path / "algo_cache"))
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    ct.conv(x, w, algo="autotune")
    assert not ct.export_algo_cache(tmp_path / "out.json")


def test_debug_reports_a_missing_function(debug: FakeCudnn) -> None:
    debug.missing.add("cudnnSoftmaxForward")
    missing = pytest.raises(ct.VersionMismatchError, match="missing from this cuDNN")
    with testing.install(FakeLibrary(debug)), missing:
        ct.softmax(images(2, 3))
