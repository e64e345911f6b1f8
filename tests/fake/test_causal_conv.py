"""Causal convolutions, those by FFT and two with gates, on the fakes: layouts, copies and accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _dlopen
from cudnn_ct.errors import ExecutionFailedError, NotSupportedError
from cudnn_ct.ops import fft_causal_conv
from tests.causal_cases import fft_operands, gated_operands, operands_of
from tests.layers import several
from tests.strategies import own, shifted

from .cudnn import FakeCudnn, FakeLibrary
from .host import Host
from .installed import cudnn_installed, forget, lacking

FORWARD, LAST = "cudnnCausalConv1dForward", "cudnnCausalConv1dNwhForward"
TILES, WHOLE = "cudnnFFTCausalConv1d", "cudnnLongFFTCausalConv1d"
HALF = np.dtype(np.float16)

Arrays = dict[str, np.ndarray]
OPERANDS = {
    "causal_conv1d": ("x", "w", "bias"),
    "fft_causal_conv1d": ("x", "w"),
    "b2b_causal_conv1d": ("x", "w_proj", "w_mixer", "skip_bias"),
}
SAVED = {"b2b_causal_conv1d": ("mixed",)}  # results of the forward pass that the gradient reads
TOLERANCE = {"fft_causal_conv1d": 1e-3}  # others are exact


def plain() -> Arrays:
    return operands_of(2, 3, 7, 4, HALF)


def gated() -> Arrays:
    return gated_operands(2, 3, 9, (4, 7), HALF)


def spectral() -> Arrays:
    return fft_operands(2, 3, 256, 128, HALF)


CASES = dict(zip(OPERANDS, (plain, spectral, gated), strict=True))


def backward(operation: str) -> tuple[str, ...]:
    """Return the names of the operands of a gradient."""
    return ("dy", *OPERANDS[operation], *SAVED.get(operation, ()))


def check(operation: str, arrays: Arrays, placed: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Compare an operation and its gradient with the reference."""
    placed = placed or {name: own(one) for name, one in arrays.items()}
    tolerance = TOLERANCE.get(operation, 0)
    for name, names in ((operation, OPERANDS[operation]), (f"{operation}_backward", backward(operation))):
        got = getattr(ct, name)(*[placed[one] for one in names], **keywords)
        wanted = getattr(ct.reference, name)(*[arrays[one] for one in names], **keywords)
        for result, expected in zip(several(got), several(wanted), strict=True):
            assert result.numpy().dtype == expected.dtype
            np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance)


def adjacent(arrays: Arrays) -> dict[str, Any]:
    """Put arrays on the device with adjacent channels."""
    order = {"x": (0, 2, 1), "dy": (0, 2, 1), "w": (1, 0), "bias": (0,)}
    return {
        name: own(np.ascontiguousarray(one.transpose(order[name]))).transpose(order[name])
        for name, one in arrays.items()
    }


# --- layouts and copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "copies"),
    [("causal_conv1d", 3 + 4), ("fft_causal_conv1d", 2 + 3), ("b2b_causal_conv1d", 4 + 6)],
)
def test_misaligned_and_strided_operands_are_copied(fake: FakeCudnn, operation: str, copies: int) -> None:
    arrays = CASES[operation]()
    check(operation, arrays, {name: own(shifted(one, 1)) for name, one in arrays.items()})
    fake.calls.clear()  # the fake rejects misaligned pointers
    check(operation, arrays, {name: own(np.repeat(one, 2, -1))[..., ::2] for name, one in arrays.items()})
    assert fake.names().count("cudnnTransformTensor") == copies


@pytest.mark.parametrize("last", [False, True])
def test_both_layouts_are_read_and_written_in_place(fake: FakeCudnn, last: bool) -> None:
    arrays = plain()
    placed = adjacent(arrays) if last else {name: own(one) for name, one in arrays.items()}
    check("causal_conv1d", arrays, placed, activation="silu")
    assert LAST.replace("Nwh", "Nwh" if last else "") in fake.names()
    assert "cudnnTransformTensor" not in fake.names()
    y = ct.causal_conv1d(placed["x"], placed["w"])
    assert y.spec.strides == placed["x"].spec.strides


def test_contiguous_weights_are_copied_for_adjacent_channels(fake: FakeCudnn) -> None:
    arrays = plain()
    check("causal_conv1d", arrays, adjacent(arrays) | {"w": own(arrays["w"])})
    assert fake.names().count("cudnnTransformTensor") == 3  # w of both calls, and dw


def test_adjacent_channels_are_copied_for_the_widest_window(fake: FakeCudnn) -> None:
    arrays = plain() | {"w": operands_of(2, 3, 7, 256, HALF)["w"]}
    check("causal_conv1d", arrays, adjacent(arrays))
    assert LAST not in fake.names()


def test_adjacent_channels_are_copied_when_the_version_lacks_their_functions(host: Host) -> None:
    with cudnn_installed(host, lacking("Conv1dNwh")) as older:
        check("causal_conv1d", plain(), adjacent(plain()), activation="silu")
        assert FORWARD in older.names()
        assert "cudnnTransformTensor" in older.names()
        forget()


def test_results_are_contiguous_for_adjacent_channels(fake: FakeCudnn) -> None:
    arrays = spectral()
    x = own(np.ascontiguousarray(arrays["x"].transpose(0, 2, 1))).transpose(0, 2, 1)
    assert ct.fft_causal_conv1d(x, own(arrays["w"])).layout == "nchw"


def test_contiguous_operands_with_gates_are_read_in_place(fake: FakeCudnn) -> None:
    check("b2b_causal_conv1d", gated())
    assert {"cudnnB2BCausalConv1dForward", "cudnnB2BCausalConv1dBackward"} <= set(fake.names())
    assert "cudnnTransformTensor" not in fake.names()


def test_interleaved_projections_are_reshaped_without_a_copy(fake: FakeCudnn) -> None:
    arrays = gated()
    n, channels, parts, length = arrays["x"].shape
    joined = own(arrays["x"].reshape(n, channels * parts, length))
    x = joined.reshape((n, channels, parts, length))
    assert x.pointer == joined.pointer
    check("b2b_causal_conv1d", arrays, {name: own(one) for name, one in arrays.items()} | {"x": x})
    assert "cudnnTransformTensor" not in fake.names()


# --- results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "width", "functions"),
    [
        (512, 128, {f"{TILES}Forward", f"{TILES}Backward"}),
        (4096, 4096, {f"{TILES}Forward", f"{TILES}Backward"}),  # no buffers are needed
        (2**15, 2**15, {f"{WHOLE}{name}" for name in ("GetBufferSizes", "Forward", "Backward")}),
    ],
)
def test_width_selects_the_functions(fake: FakeCudnn, length: int, width: int, functions: set[str]) -> None:
    check("fft_causal_conv1d", fft_operands(2, 3, length, width, HALF))
    assert {name for name in fake.names() if "FFT" in name} == functions
    assert "cudnnTransformTensor" not in fake.names()


def test_float64_has_shorter_windows_in_tiles(fake: FakeCudnn) -> None:
    check("fft_causal_conv1d", fft_operands(1, 1, 8192, 8192, np.dtype(np.float64)))
    assert f"{WHOLE}Backward" in fake.names()
    with pytest.raises(ValueError, match=r"got 8192 for float64 and a length of 16384, .* from 128 to 4096"):
        ct.fft_causal_conv1d(ct.zeros((1, 1, 16384), "float64"), ct.zeros((1, 8192), "float64"))


def test_rejected_tiles_are_replaced_by_the_whole_sequence(fake: FakeCudnn) -> None:
    fake.fail[f"{TILES}Forward"] = fake.fail[f"{TILES}Backward"] = 3000  # too little shared memory
    check("fft_causal_conv1d", fft_operands(1, 2, 2**14, 2**14, HALF))
    assert f"{WHOLE}Backward" in fake.names()
    with pytest.raises(NotSupportedError, match=TILES):
        ct.fft_causal_conv1d(ct.zeros((1, 1, 2**15)), ct.zeros((1, 2**14)))


def test_too_many_channels_are_rejected_for_the_whole_sequence(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fft_causal_conv, "MAX_BLOCKS", 2)
    check("fft_causal_conv1d", fft_operands(1, 3, 4096, 4096, HALF))  # in tiles
    message = r"takes at most 2 sequences and channels for a window as long as the sequence: got 1 and 3"
    with pytest.raises(NotSupportedError, match=message):
        ct.fft_causal_conv1d(ct.zeros((1, 3, 2**15)), ct.zeros((3, 2**15)))


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_parameters_replace_the_contents_of_out(fake: FakeCudnn, bias: bool) -> None:
    arrays = plain()
    dw, dbias = (own(np.full(arrays[name].shape, np.nan, np.float32)) for name in ("w", "bias"))
    names = backward("causal_conv1d")
    given = [own(arrays[name]) for name in names[: 3 + bias]]
    wanted = ct.reference.causal_conv1d_backward(*[arrays[name] for name in names])
    found = ct.causal_conv1d_backward(*given, out=(None, dw, dbias) if bias else (None, dw))
    np.testing.assert_allclose(dw.numpy(), wanted.dw)
    assert found.dw.pointer == dw.pointer
    assert (found.dbias is not None) is bias
    if not bias:
        with pytest.raises(ValueError, match="out has dbias, but bias is not given"):
            ct.causal_conv1d_backward(*given, out=(None, dw, dbias))


def test_gradients_with_gates_replace_the_contents_of_out(fake: FakeCudnn) -> None:
    arrays, names = gated(), backward("b2b_causal_conv1d")
    outs = [own(np.full(arrays[name].shape, np.nan, np.float32)) for name in names[2:5]]
    wanted = ct.reference.b2b_causal_conv1d_backward(*[arrays[name] for name in names])
    found = ct.b2b_causal_conv1d_backward(*[own(arrays[name]) for name in names], out=(None, *outs))
    for result, memory, expected in zip(found[1:], outs, wanted[1:], strict=True):
        assert result.pointer == memory.pointer
        np.testing.assert_array_equal(memory.numpy(), expected)


@pytest.mark.parametrize("operation", OPERANDS)
def test_batches_without_elements_have_gradients_of_zeros(fake: FakeCudnn, operation: str) -> None:
    shapes = {name: one.shape for name, one in CASES[operation]().items()}
    empty = {name: ct.zeros((0, *shapes[name][1:])) for name in ("x", "dy", "mixed") if name in shapes}
    given = {name: ct.full(shape, 1) for name, shape in shapes.items()} | empty
    result = several(getattr(ct, operation)(*[given[name] for name in OPERANDS[operation]]))
    assert {one.shape for one in result} == {empty["dy"].shape}
    found = getattr(ct, f"{operation}_backward")(*[given[name] for name in backward(operation)])
    assert found[0].shape == empty["x"].shape
    assert not any(one.numpy().any() for one in found[1:])
    assert not [name for name in fake.names() if "Conv1d" in name]


# --- errors ------------------------------------------------------------------------------------------------


WRONG: dict[str, list[tuple[tuple[tuple[int, ...], ...], str]]] = {
    "causal_conv1d": [
        (((2, 3), (3, 4)), r"x has a wrong shape: got \(2, 3\), expected \(N, channels, length\)"),
        (((2, 3, 7), (4, 4)), r"w has a wrong shape: got \(4, 4\), expected \(3, width\)"),
        (((2, 3, 7), (3, 9)), "the width of w is not supported: got 9, expected 2 to 8 or one of 16,"),
        (((2, 3, 7), (3, 4), (4,)), r"bias has a wrong shape: got \(4,\), expected \(3,\)"),
    ],
    "fft_causal_conv1d": [
        (((2, 256), (3, 128)), r"x has a wrong shape: got \(2, 256\), expected \(N, channels, length\)"),
        (((2, 3, 256), (4, 128)), r"w has a wrong shape: got \(4, 128\), expected \(3, width\)"),
        (((2, 3, 256), (3, 64)), "the width of w is not supported: got 64 for float32"),
        (((2, 3, 200), (3, 128)), "the length of x is not supported: got 200, expected a multiple of the "),
        (((2, 3, 2**16), (3, 2**15)), "the width of w is not supported: got 32768 .* a length of 65536"),
    ],
}


@pytest.mark.parametrize(
    ("operation", "shapes", "message"), [(name, *row) for name, rows in WRONG.items() for row in rows]
)
def test_wrong_shapes_are_rejected_with_numbers(
    fake: FakeCudnn, operation: str, shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ct, operation)(*map(ct.zeros, shapes))
    with pytest.raises(ValueError, match=message):
        getattr(ct.reference, operation)(*map(np.zeros, shapes))


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
