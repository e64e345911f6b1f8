"""Arrays of torch, cupy, numba and jax in, ours out: in place, in the right order, alive long enough."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library

SHAPE = (2, 3, 8, 9)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, SHAPE).astype(np.float32)


def to_device(name: str, values: np.ndarray) -> Any:
    """Values as an array of another library."""
    module = library("numba.cuda" if name == "numba" else name)
    if name == "torch":
        return module.tensor(values, device="cuda")
    if name == "cupy":
        return module.asarray(values)
    if name == "numba":
        return module.to_device(values)
    return module.device_put(values, module.devices("gpu")[0])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (2, 8, 1, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_result_has_memory_format_of_torch_tensor_when_axes_have_length_1(
    channels_last: bool, shape: tuple[int, ...], dtype: str
) -> None:
    torch = library("torch")
    x = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
    c, h, w = shape[1:]
    strides = (c * h * w, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1)
    x = x.as_strided(shape, strides)
    layout = "nhwc" if channels_last else "nchw"
    weight = ct.zeros((4, c, 1, 1), dtype, layout=layout)
    for y in (ct.activation(x), ct.conv(x, weight)):
        assert y.spec == ct.TensorSpec.packed(y.shape, dtype, layout)
    assert torch.from_dlpack(ct.activation(x)).stride() == x.stride()


def pointer(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    return array.__cuda_array_interface__["data"][0]


@pytest.mark.parametrize("name", ["torch", "cupy", "numba", "jax"])
def test_asarray_shares_the_memory_of_another_library(name: str, values: np.ndarray) -> None:
    theirs = to_device(name, values)
    ours = ct.asarray(theirs)
    assert ours.pointer == pointer(theirs)
    np.testing.assert_array_equal(ours.numpy(), values)
    w = np.ones((4, 3, 3, 3), np.float32)
    np.testing.assert_array_equal(ct.conv(theirs, ct.asarray(w)).numpy(), ct.reference.conv(values, w))


@pytest.mark.parametrize("name", ["torch", "cupy", "cupy by interface", "numba", "jax"])
def test_another_library_shares_the_memory_of_a_result(name: str, values: np.ndarray) -> None:
    w = np.ones((4, 3, 3, 3), np.float32)
    y = ct.conv(ct.asarray(values), ct.asarray(w))
    if name == "numba":
        theirs = library("numba.cuda").as_cuda_array(y)
    elif name == "cupy by interface":
        theirs = library("cupy").asarray(y)
    else:
        module = library(name)
        theirs = (module.dlpack if name == "jax" else module).from_dlpack(y)
    assert pointer(theirs) == y.pointer
    np.testing.assert_array_equal(on_host(theirs), ct.reference.conv(values, w))


def on_host(theirs: Any) -> np.ndarray:
    for way in ("cpu", "get", "copy_to_host"):
        if hasattr(theirs, way):
            return np.asarray(getattr(theirs, way)())
    return np.asarray(theirs)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_bfloat16_is_exchanged_by_dlpack(name: str, values: np.ndarray) -> None:
    """NumPy has none, so it goes by DLPack alone."""
    module, w = library(name), np.ones((4, 3, 3, 3), np.float32)
    if name == "torch":
        x, filters = (module.tensor(a, device="cuda").to(module.bfloat16) for a in (values, w))
    else:
        gpu = module.devices("gpu")[0]
        x, filters = (
            module.device_put(a.astype("bfloat16"), gpu) for a in map(module.numpy.asarray, (values, w))
        )
    ours = ct.asarray(x)
    assert (ours.spec.dtype, ours.pointer) == ("bfloat16", pointer(x))
    y = ct.conv(x, filters)
    theirs = (module if name == "torch" else module.dlpack).from_dlpack(y)
    assert (str(theirs.dtype).removeprefix("torch."), pointer(theirs)) == ("bfloat16", y.pointer)
    wide = theirs.float().cpu().numpy() if name == "torch" else np.asarray(theirs).astype(np.float32)
    np.testing.assert_array_equal(wide, ct.reference.conv(values, w))  # of sums within 8 bits: exact


def test_tensor_that_requires_grad_is_rejected(values: np.ndarray) -> None:
    torch = library("torch")
    x = torch.tensor(values, device="cuda", requires_grad=True)
    w = torch.nn.Parameter(torch.ones((4, 3, 3, 3), device="cuda"))
    out = torch.empty((2, 4, 6, 7), device="cuda", requires_grad=True)
    for first, second, to in ((x, w.detach(), None), (x.detach(), w, None), (x.detach(), w.detach(), out)):
        with pytest.raises(TypeError, match=r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"):
            ct.conv(first, second, out=to)
    expected = ct.reference.conv(values, np.ones((4, 3, 3, 3), np.float32))
    np.testing.assert_array_equal(ct.conv(x.detach(), w.detach()).numpy(), expected)
    with torch.no_grad():
        assert ct.asarray(x).pointer == x.data_ptr()
        np.testing.assert_array_equal(ct.conv(x, w).numpy(), expected)
        assert ct.conv(x, w, out=out).pointer == ct.asarray(out).pointer
        np.testing.assert_array_equal(out.cpu().numpy(), expected)
    with torch.inference_mode():
        made = torch.tensor(values, device="cuda")
        np.testing.assert_array_equal(ct.conv(made, w).numpy(), expected)


def test_negative_bit_of_torch_is_applied_to_inputs(values: np.ndarray) -> None:
    """``z.conj().imag`` shares the memory of ``z.imag``, and differs by a bit that no protocol exports."""
    torch = library("torch")
    z = torch.complex(torch.zeros(SHAPE), torch.tensor(values)).cuda()
    x = z.conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(ct.asarray(x).numpy(), -values)
    np.testing.assert_array_equal(ct.asarray(x.cpu()).numpy(), -values)
    np.testing.assert_array_equal(ct.activation(x).numpy(), np.maximum(-values, 0))
    w = np.ones((4, 3, 3, 3), np.float32)
    np.testing.assert_array_equal(ct.conv(x, ct.asarray(w)).numpy(), ct.reference.conv(-values, w))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shifted = torch.complex(torch.zeros_like(z.real), z.imag + 1).conj().imag
        got = ct.activation(shifted, mode="identity", stream=side)
    np.testing.assert_array_equal(got.numpy(), -values - 1)
    np.testing.assert_array_equal(ct.asarray(z.real).numpy(), np.zeros(SHAPE))


def test_negative_bit_of_torch_is_rejected_in_outputs(values: np.ndarray) -> None:
    torch = library("torch")
    out = torch.zeros(SHAPE, dtype=torch.complex64, device="cuda").conj().imag
    with pytest.raises(ValueError, match=r"out cannot be written: .*; pass tensor\.resolve_neg\(\)"):
        ct.activation(ct.asarray(values), out=out)


def test_conjugate_bit_of_torch_needs_a_complex_dtype_which_is_rejected(values: np.ndarray) -> None:
    torch = library("torch")
    z = torch.complex(torch.tensor(values), torch.tensor(values)).cuda().conj()
    assert z.is_conj()
    assert not z.real.is_conj()
    for call in (ct.asarray, ct.activation):
        with pytest.raises(TypeError):
            call(z)
    np.testing.assert_array_equal(ct.asarray(z.real).numpy(), values)


class ReadOnly:
    """Memory that its owner forbids to write."""

    def __init__(self, array: ct.DeviceArray) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | {"data": (array.pointer, True)}


def test_read_only_array_is_read_and_not_written(values: np.ndarray) -> None:
    x, w = ct.asarray(values), np.ones((4, 3, 3, 3), np.float32)
    kept = ct.asarray(ReadOnly(x))
    assert (kept.pointer, kept.readonly) == (x.pointer, True)
    assert kept.__cuda_array_interface__["data"] == (x.pointer, True)
    with pytest.raises(BufferError, match=r"needs a consumer of DLPack 1\.0 or newer"):
        kept.__dlpack__()
    y = ct.conv(ReadOnly(x), ct.asarray(w))
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(values, w))
    with pytest.raises(ValueError, match="out is read-only"):
        ct.conv(x, ct.asarray(w), out=ReadOnly(y))


def test_array_of_jax_is_not_written(values: np.ndarray) -> None:
    library("jax")
    w = to_device("jax", np.ones((4, 3, 3, 3), np.float32))
    out = to_device("jax", np.zeros((2, 4, 6, 7), np.float32))
    with pytest.raises(ValueError, match="out is read-only"):
        ct.conv(to_device("jax", values), w, out=out)


@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_out_of_another_library_is_written_and_returned(name: str, values: np.ndarray) -> None:
    x = to_device(name, values)
    w = to_device(name, np.ones((4, 3, 3, 3), np.float32))
    out = to_device(name, np.full((2, 4, 6, 7), np.nan, np.float32))
    assert ct.conv(x, w, out=out).pointer == ct.asarray(out).pointer
    np.testing.assert_array_equal(on_host(out), ct.reference.conv(values, np.ones((4, 3, 3, 3), np.float32)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_torch_shares_the_memory_of_an_array(dtype: str, layout: str, values: np.ndarray) -> None:
    torch = library("torch")
    ours = ct.asarray(values, dtype, layout=layout)
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours.pointer
    assert theirs.dtype == getattr(torch, dtype)
    assert theirs.stride() == ours.spec.strides
    np.testing.assert_array_equal(theirs.to(torch.float64).cpu().numpy(), ours.numpy().astype(np.float64))


def test_cupy_shares_the_memory_of_an_array(values: np.ndarray) -> None:
    cupy = library("cupy")
    for layout in ("nchw", "nhwc"):
        ours = ct.asarray(values, layout=layout)
        for theirs in (cupy.from_dlpack(ours), cupy.asarray(ours)):
            assert theirs.data.ptr == ours.pointer
            assert theirs.strides == ours.strides
            np.testing.assert_array_equal(theirs.get(), values)


def test_exported_memory_outlives_our_array(values: np.ndarray) -> None:
    torch = library("torch")
    ours = ct.asarray(values)
    theirs = torch.from_dlpack(ours)
    del ours
    gc.collect()
    others = [ct.full(SHAPE, np.nan) for _ in range(8)]
    np.testing.assert_array_equal(theirs.cpu().numpy(), values)
    del others


def test_conv_takes_views_of_other_libraries(values: np.ndarray) -> None:
    torch, cupy = library("torch"), library("cupy")
    w = np.ones((2, 3, 2, 2), np.float32)
    x = torch.tensor(values, device="cuda")
    for view in (x[:, :, ::2], x.transpose(2, 3), x.to(memory_format=torch.channels_last), x[1:], x[..., 1:]):
        np.testing.assert_array_equal(
            ct.conv(view, ct.asarray(w)).numpy(), ct.reference.conv(view.cpu().numpy(), w)
        )
    for view in (cupy.asarray(values)[:, :, ::-1], x[:1].expand(4, 3, 8, 9)):
        with pytest.warns(ct.CudnnWarning, match="copied through host memory"):
            y = ct.conv(view, ct.asarray(w))
        host = view.get() if hasattr(view, "get") else view.cpu().numpy()
        np.testing.assert_array_equal(y.numpy(), ct.reference.conv(host, w))


def test_host_array_is_rejected_with_advice(values: np.ndarray) -> None:
    torch = library("torch")
    w = ct.zeros((1, 3, 1, 1))
    for host in (values, torch.tensor(values), values.tolist()):
        with pytest.raises(TypeError, match=r"ct\.asarray\(x\) makes one"):
            ct.conv(host, w)
    np.testing.assert_array_equal(ct.asarray(torch.tensor(values)).numpy(), values)


# --- streams -----------------------------------------------------------------------------------------------


def slow(torch: Any, size: int = 8192) -> Any:
    """Keep the current torch stream busy for tens of milliseconds."""
    a = torch.randn(size, size, device="cuda")
    for _ in range(20):
        a = a @ a
    return a


def test_memory_is_not_reused_before_its_use_on_another_stream_is_over() -> None:
    torch = library("torch")
    side = torch.cuda.Stream()
    w = ct.full((1, 1, 1, 1), 3.0)
    x = ct.full((1, 1, 2048, 2048), 2.0)
    out = ct.full(x.shape, np.nan)
    ct.synchronize()
    with torch.cuda.stream(side):
        busy = slow(torch)
    ct.conv(x, w, out=out, stream=side)  # waits behind the slow work
    pointer = x.pointer
    del x
    again = ct.full(out.shape, np.nan)  # the pool may hand the same address out, but not too early
    ct.synchronize(side)
    assert (out.numpy() == 6).all(), f"memory at {pointer:#x} was reused in flight, by {again!r}"
    del busy


def test_use_takes_streams_of_every_library() -> None:
    torch, cupy = library("torch"), library("cupy")
    from cuda.core import Device

    Device(0).set_current()
    x, w = ct.full((1, 1, 4, 4), 1.0), ct.full((1, 1, 4, 4), 1.0)
    for stream in (torch.cuda.Stream(), cupy.cuda.Stream(), Device(0).create_stream()):
        with ct.use(stream=stream) as used:
            y = ct.conv(x, w)
            assert y.home == used
            assert used.handle != 1
        assert y.numpy() == 16
