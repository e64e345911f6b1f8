"""Causal convolutions on the fakes: layouts, copies, accumulation, and errors of each set of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _dlopen
from cudnn_ct.errors import ExecutionFailedError, NotSupportedError
from tests.causal_cases import operands_of
from tests.layers import several
from tests.strategies import own, shifted

from . import cudnn
from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .installed import cudnn_installed, forget

FORWARD, LAST = "cudnnCausalConv1dForward", "cudnnCausalConv1dNwhForward"
HALF = np.dtype(np.float16)


def on_device(last: bool = False, **changed: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays in host memory, and the same on the device, with adjacent channels if ``last`` is set."""
    arrays = operands_of(2, 3, 7, 4, HALF) | changed
    order = {"x": (0, 2, 1), "dy": (0, 2, 1), "w": (1, 0), "bias": (0,)}
    placed = {
        name: own(np.ascontiguousarray(one.transpose(order[name])).transpose(order[name]) if last else one)
        for name, one in arrays.items()
    }
    return arrays, placed


def check(arrays: dict[str, np.ndarray], placed: dict[str, Any], **keywords: Any) -> None:
    for name, operands in (("", ("x", "w", "bias")), ("_backward", ("dy", "x", "w", "bias"))):
        got = getattr(ct, f"causal_conv1d{name}")(*[placed[one] for one in operands], **keywords)
        wanted = getattr(ct.reference, f"causal_conv1d{name}")(*[arrays[one] for one in operands], **keywords)
        for result, expected in zip(several(got), several(wanted), strict=True):
            assert result.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("last", [False, True])
def test_both_layouts_are_read_and_written_in_place(fake: FakeCudnn, last: bool) -> None:
    arrays, placed = on_device(last)
    check(arrays, placed, activation="silu")
    assert LAST.replace("Nwh", "Nwh" if last else "") in fake.names()
    assert "cudnnTransformTensor" not in fake.names()
    y = ct.causal_conv1d(placed["x"], placed["w"])
    assert y.spec.strides == placed["x"].spec.strides


def test_contiguous_weights_are_copied_for_adjacent_channels(fake: FakeCudnn) -> None:
    arrays, placed = on_device(True)
    placed["w"] = own(arrays["w"])
    check(arrays, placed)
    assert fake.names().count("cudnnTransformTensor") == 3  # w of both calls, and dw


def test_adjacent_channels_are_copied_for_the_widest_window(fake: FakeCudnn) -> None:
    check(*on_device(True, w=operands_of(2, 3, 7, 256, HALF)["w"]))
    assert LAST not in fake.names()


def test_adjacent_channels_are_copied_when_the_version_lacks_their_functions(host: Host) -> None:
    class Older(FakeCudnn):
        def lookup(self, name: str) -> Any:
            return None if "Conv1dNwh" in name else super().lookup(name)

    with cudnn_installed(host, Older) as older:
        check(*on_device(True), activation="silu")
        assert FORWARD in older.names()
        assert "cudnnTransformTensor" in older.names()
        forget()


def test_misaligned_operands_are_copied(fake: FakeCudnn) -> None:
    arrays, placed = on_device()
    placed |= {name: own(shifted(arrays[name], 1)) for name in ("x", "w", "bias", "dy")}
    check(arrays, placed)  # the fake rejects misaligned pointers


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_parameters_replace_the_contents_of_out(fake: FakeCudnn, bias: bool) -> None:
    arrays, placed = on_device()
    dw, dbias = (own(np.full(arrays[name].shape, np.nan, np.float32)) for name in ("w", "bias"))
    given = [placed[name] for name in ("dy", "x", "w", "bias")[: 3 + bias]]
    wanted = ct.reference.causal_conv1d_backward(*[arrays[one] for one in ("dy", "x", "w")], arrays["bias"])
    found = ct.causal_conv1d_backward(*given, out=(None, dw, dbias) if bias else (None, dw))
    np.testing.assert_allclose(dw.numpy(), wanted.dw)
    assert found.dw.pointer == dw.pointer
    assert (found.dbias is not None) is bias
    if not bias:
        with pytest.raises(ValueError, match="out has dbias, but bias is not given"):
            ct.causal_conv1d_backward(*given, out=(None, dw, dbias))


def test_batches_without_elements_have_gradients_of_zeros(fake: FakeCudnn) -> None:
    x, w = ct.zeros((0, 3, 7)), ct.full((3, 4), 1)
    assert ct.causal_conv1d(x, w).shape == (0, 3, 7)
    dx, dw, _ = ct.causal_conv1d_backward(x, x, w)
    assert dx.shape == (0, 3, 7)
    assert not dw.numpy().any()
    assert not [name for name in fake.names() if "CausalConv1d" in name]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (3, 4)), r"x has a wrong shape: got \(2, 3\), expected \(N, channels, length\)"),
        (((2, 3, 7), (4, 4)), r"w has a wrong shape: got \(4, 4\), expected \(3, width\)"),
        (((2, 3, 7), (3, 9)), "the width of w is not supported: got 9, expected 2 to 8 or one of 16,"),
        (((2, 3, 7), (3, 4), (4,)), r"bias has a wrong shape: got \(4,\), expected \(3,\)"),
    ],
)
def test_wrong_shapes_are_rejected_with_numbers(
    fake: FakeCudnn, shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ct.causal_conv1d(*map(ct.zeros, shapes))
    with pytest.raises(ValueError, match=message):
        ct.reference.causal_conv1d(*map(np.zeros, shapes))


def test_other_dtypes_and_activations_are_rejected(fake: FakeCudnn) -> None:
    x, w = ct.zeros((2, 3, 7)), ct.zeros((3, 4))
    with pytest.raises(TypeError, match="x is float32 and w is float16"):
        ct.causal_conv1d(x, w.astype("float16"))
    with pytest.raises(TypeError, match="not int8"):
        ct.causal_conv1d(ct.zeros((2, 3, 7), "int8"), ct.zeros((3, 4), "int8"))
    with pytest.raises(ValueError, match="activation must be one of silu, swish, identity: got 'relu'"):
        ct.causal_conv1d(x, w, activation="relu")  # type: ignore[arg-type]


def test_jit_set_names_the_library_that_it_lacks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "jit")
    monkeypatch.setattr(cudnn, "VERSION", 92700)
    message = r"rejected: causal_conv1d needs libcudnn_ext, which the JIT wheel lacks \(3009\)"
    with cudnn_installed(host):
        x, w = ct.zeros((2, 3, 7)), ct.zeros((3, 4))
        with pytest.raises(NotSupportedError, match=message):
            ct.causal_conv1d(x, w)
        with pytest.raises(NotSupportedError, match=message):
            ct.causal_conv1d_backward(x, x, w)
        del x, w


def test_older_cudnn_names_the_version_that_is_needed(host: Host) -> None:
    class Older(FakeCudnn):
        def lookup(self, name: str) -> Any:
            return None if "CausalConv1d" in name else super().lookup(name)

    message = "rejected: causal_conv1d needs cuDNN >= 9.22.0, have 9.19.0"
    with cudnn_installed(host, Older), pytest.raises(NotSupportedError, match=message):
        ct.causal_conv1d(ct.zeros((2, 3, 7)), ct.zeros((3, 4)))


def test_set_of_one_library_computes_without_a_handle(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "ext")
    with cudnn_installed(host) as alone:
        check(*on_device())
        check(*on_device(True), activation="silu")
        assert {name for name in alone.names() if "Conv1d" not in name} == set()
        with pytest.raises(NotSupportedError, match=r"needs libcudnn_ops, which a set of libcudnn_ext alone"):
            ct.softmax(ct.zeros((2, 3)))
        forget()


@pytest.mark.parametrize("found", ["", "/usr/lib/libnvrtc.so.13"])
def test_failed_compilation_names_nvrtc(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(FakeLibrary, "nvrtc", (found,) * bool(found))
    fake.fail[FORWARD] = 5000
    monkeypatch.setenv("CUDA_HOME", "/opt/toolkit")
    message = rf"NVRTC of its own CUDA major version \({found or 'none was found'}.*CUDA_HOME=/opt/toolkit"
    with pytest.raises(ExecutionFailedError, match=message) as caught:
        ct.causal_conv1d(ct.zeros((2, 3, 7)), ct.zeros((3, 4)))
    assert caught.value.status == 5000


def test_nvrtc_of_each_major_version_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(_dlopen, "find_nvrtc", lambda _, cuda: f"/x/libnvrtc.so.{cuda}" * (cuda > 11))
    monkeypatch.setattr(_dlopen, "open_library", lambda path: opened.append(str(path)) or str(path))
    assert _dlopen.open_nvrtc(None, (13, 12, 11)) == ("/x/libnvrtc.so.13", "/x/libnvrtc.so.12")  # type: ignore[arg-type]
    assert opened == ["/x/libnvrtc.so.13", "/x/libnvrtc.so.12"]
