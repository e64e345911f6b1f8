"""Causal convolutions by FFT on the fakes: both sets of kernels, copies, and errors of sets of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops import fft_causal_conv
from tests.causal_cases import fft_operands
from tests.layers import several
from tests.strategies import own, shifted

from . import cudnn
from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .installed import cudnn_installed, forget

HALF = np.dtype(np.float16)
TILES, WHOLE = "cudnnFFTCausalConv1d", "cudnnLongFFTCausalConv1d"


def check(arrays: dict[str, np.ndarray], placed: dict[str, Any] | None = None) -> None:
    placed = placed or {name: own(one) for name, one in arrays.items()}
    for name, operands in (("", ("x", "w")), ("_backward", ("dy", "x", "w"))):
        got = getattr(ct, f"fft_causal_conv1d{name}")(*[placed[one] for one in operands])
        wanted = getattr(ct.reference, f"fft_causal_conv1d{name}")(*[arrays[one] for one in operands])
        for result, expected in zip(several(got), several(wanted), strict=True):
            assert result.numpy().dtype == expected.dtype
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("length", "width", "functions"),
    [
        (512, 128, {f"{TILES}Forward", f"{TILES}Backward"}),
        (4096, 4096, {f"{TILES}Forward", f"{TILES}Backward"}),  # no buffers are needed
        (2**15, 2**15, {f"{WHOLE}{name}" for name in ("GetBufferSizes", "Forward", "Backward")}),
    ],
)
def test_width_selects_the_functions(fake: FakeCudnn, length: int, width: int, functions: set[str]) -> None:
    check(fft_operands(2, 3, length, width, HALF))
    assert {name for name in fake.names() if "FFT" in name} == functions
    assert "cudnnTransformTensor" not in fake.names()


def test_float64_has_shorter_windows_in_tiles(fake: FakeCudnn) -> None:
    check(fft_operands(1, 1, 8192, 8192, np.dtype(np.float64)))
    assert f"{WHOLE}Backward" in fake.names()
    with pytest.raises(ValueError, match=r"got 8192 for float64 and a length of 16384, .* from 128 to 4096"):
        ct.fft_causal_conv1d(ct.zeros((1, 1, 16384), "float64"), ct.zeros((1, 8192), "float64"))


def test_rejected_tiles_are_replaced_by_the_whole_sequence(fake: FakeCudnn) -> None:
    fake.fail[f"{TILES}Forward"] = fake.fail[f"{TILES}Backward"] = 3000  # too little shared memory
    check(fft_operands(1, 2, 2**14, 2**14, HALF))
    assert f"{WHOLE}Backward" in fake.names()
    with pytest.raises(NotSupportedError, match=TILES):
        ct.fft_causal_conv1d(ct.zeros((1, 1, 2**15)), ct.zeros((1, 2**14)))


def test_misaligned_and_strided_operands_are_copied(fake: FakeCudnn) -> None:
    arrays = fft_operands(2, 3, 256, 128, HALF)
    check(arrays, {name: own(shifted(one, 1)) for name, one in arrays.items()})  # the fake rejects others
    fake.calls.clear()
    check(arrays, {name: own(np.repeat(one, 2, -1))[..., ::2] for name, one in arrays.items()})
    assert fake.names().count("cudnnTransformTensor") == 5


def test_results_are_contiguous_for_adjacent_channels(fake: FakeCudnn) -> None:
    arrays = fft_operands(2, 3, 256, 128, HALF)
    x = own(np.ascontiguousarray(arrays["x"].transpose(0, 2, 1))).transpose(0, 2, 1)
    assert ct.fft_causal_conv1d(x, own(arrays["w"])).layout == "nchw"


def test_batches_without_elements_have_gradients_of_zeros(fake: FakeCudnn) -> None:
    x, w = ct.zeros((0, 3, 256)), ct.full((3, 128), 1)
    assert ct.fft_causal_conv1d(x, w).shape == (0, 3, 256)
    assert not ct.fft_causal_conv1d_backward(x, x, w).dw.numpy().any()
    assert not [name for name in fake.names() if "FFT" in name]


def test_too_many_channels_are_rejected_for_the_whole_sequence(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fft_causal_conv, "MAX_BLOCKS", 2)
    check(fft_operands(1, 3, 4096, 4096, HALF))  # in tiles
    message = r"takes at most 2 sequences and channels for a window as long as the sequence: got 1 and 3"
    with pytest.raises(NotSupportedError, match=message):
        ct.fft_causal_conv1d(ct.zeros((1, 3, 2**15)), ct.zeros((3, 2**15)))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 256), (3, 128)), r"x has a wrong shape: got \(2, 256\), expected \(N, channels, length\)"),
        (((2, 3, 256), (4, 128)), r"w has a wrong shape: got \(4, 128\), expected \(3, width\)"),
        (((2, 3, 256), (3, 64)), "the width of w is not supported: got 64 for float32"),
        (((2, 3, 200), (3, 128)), "the length of x is not supported: got 200, expected a multiple of the "),
        (((2, 3, 2**16), (3, 2**15)), "the width of w is not supported: got 32768 .* a length of 65536"),
    ],
)
def test_wrong_shapes_are_rejected_with_numbers(
    fake: FakeCudnn, shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ct.fft_causal_conv1d(*map(ct.zeros, shapes))


def test_older_cudnn_names_the_version_that_is_needed(host: Host) -> None:
    class Older(FakeCudnn):
        def lookup(self, name: str) -> Any:
            return None if "FFT" in name else super().lookup(name)

    message = "rejected: fft_causal_conv1d needs cuDNN >= 9.26.0, have 9.19.0"
    with cudnn_installed(host, Older):
        for length in (128, 2**15):
            with pytest.raises(NotSupportedError, match=message):
                ct.fft_causal_conv1d(ct.zeros((1, 1, length)), ct.zeros((1, length)))


@pytest.mark.parametrize("length", [128, 2**15])
def test_jit_set_names_the_library_that_it_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "jit")
    monkeypatch.setattr(cudnn, "VERSION", 92700)
    message = r"rejected: fft_causal_conv1d needs libcudnn_ext, which the JIT wheel lacks \(3009\)"
    with cudnn_installed(host), pytest.raises(NotSupportedError, match=message):
        ct.fft_causal_conv1d(ct.zeros((1, 1, length)), ct.zeros((1, length)))


def test_set_of_one_library_computes_without_a_handle(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLibrary, "kind", "ext")
    with cudnn_installed(host) as alone:
        check(fft_operands(1, 2, 256, 128, HALF))
        check(fft_operands(1, 1, 2**15, 2**15, HALF))
        assert {name for name in alone.names() if "FFT" not in name} == set()
        forget()
