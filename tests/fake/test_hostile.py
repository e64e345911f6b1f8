"""What the fuzzer found: arguments that were taken, or kept, or refused in a way that nobody documented."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference
from cudnn_ct.cuda import interop
from cudnn_ct.cuda import stream as streams
from cudnn_ct.dnn.availability import check_context as dnn_context
from cudnn_ct.shapes.ctc import check_ctc_operands

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


class Said:
    """An object with the attributes that it was told."""

    def __init__(self, **said: Any) -> None:
        vars(self).update(said)


KEEPERS: dict[str, Callable[[Any], object]] = {
    "a device to free memory of": lambda array: ct.empty_cache(device=array),
    "a device to use": lambda array: ct.use(device=array).__enter__(),
    "a dtype": lambda array: ct.empty((2, 3), array),
    "a flag": lambda array: ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), strict=array),
    "a flag of a layer": lambda array: ct.reduce(images(2, 3), keepdims=array),
    "another flag": lambda array: ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), deterministic=array),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_what_is_refused_is_not_kept(fake: FakeCudnn, name: str) -> None:
    array = images(2, 3)
    there = weakref.ref(array)
    with pytest.raises(TypeError):
        KEEPERS[name](array)
    del array
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("device", [-1, 2, 2**70])
def test_a_device_that_is_not_there(fake: FakeCudnn, device: int) -> None:
    for call in (ct.empty_cache, lambda device: ct.use(device=device).__enter__()):
        with pytest.raises(ValueError, match=f"device {device} does not exist: the driver shows 2"):
            call(device=device)


@pytest.mark.parametrize("value", [True, False, 1, 0, np.True_])
def test_flags_as_they_may_be_written(fake: FakeCudnn, value: Any) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    np.testing.assert_array_equal(ct.conv(x, w, deterministic=value).numpy(), ct.conv(x, w).numpy())


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (2**64, ValueError),
        (-1, ValueError),
        (Said(__cuda_stream__=(0, "x")), TypeError),
        (Said(__cuda_stream__=lambda: (0, -1)), ValueError),
        (Said(cuda_stream=2**64), ValueError),
        (Said(ptr=-7), ValueError),
        ("x", TypeError),
    ],
)
def test_a_stream_that_is_none(fake: FakeCudnn, stream: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="stream must be an address"):
        ct.softmax(images(2, 3), stream=stream)


@pytest.mark.parametrize(("stream", "error"), [("x", TypeError), (-1, ValueError), (2**64, ValueError)])
def test_an_array_whose_stream_is_none(stream: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="stream must be an address"):
        interop._producer_stream(Said(__cuda_array_interface__={"stream": stream}), 0)


@pytest.mark.parametrize("said", [None, (), (2,), "cuda", ("cuda", 0), 5])
def test_an_array_whose_device_is_none(said: Any) -> None:
    liar = Said(__dlpack_device__=lambda: said, __dlpack__=lambda **_: None)
    for ask in (interop.device_of, interop.in_host_memory):
        with pytest.raises(TypeError, match=r"__dlpack_device__ of .* is malformed: got"):
            ask(liar)


def test_an_array_at_address_0(fake: FakeCudnn, host: Host) -> None:
    array = ForeignArray(host, np.zeros((2, 3), np.float32))
    array.pointer = 0
    with pytest.raises(
        ValueError, match=r"ForeignArray is not usable: its float32\[2, 3\] nchw is at address 0"
    ):
        ct.softmax(array)
    empty = ForeignArray(host, np.zeros((0, 3), np.float32))
    empty.pointer = 0
    assert ct.softmax(empty).shape == (0, 3)


def test_methods_of_arrays_check_what_they_are_given(fake: FakeCudnn) -> None:
    x = images(2, 3, 4, 5)
    with pytest.raises(TypeError, match="stream must be an address"):
        x.packed("nhwc", 1.5)
    np.testing.assert_array_equal(x.packed("nhwc").numpy(), x.numpy())
    with pytest.raises(TypeError, match="value must be a real number: got 1j"):
        x.fill(1j)


MANY = np.zeros(2)  # has no truth value
RNN = ct.RNN("rnn_relu", 2, 3, bias="no_bias")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ct.softmax(x, alpha=MANY), "alpha must be a number"),
        (lambda x: ct.softmax(x, beta=MANY, out=x), "beta must be a number"),
        (lambda x: ct.conv(x, x, alpha=None), "alpha must be a number: got None"),
        (lambda x: ct.conv_plan(x, x, beta=x), "beta must be a number"),
        (lambda x: ct.conv_algorithms(x, x, alpha="1"), "alpha must be a number: got '1'"),
        (lambda x: ct.conv_backward_bias(x, beta=None), "beta must be a number: got None"),
        (lambda x: ct.batch_norm_training(x, x, x, alpha=x), "alpha must be a number"),
        (lambda x: ct.conv_transpose_output_shape((1, 1, 1), (1, 1, 1), groups=1.5), "groups must be an int"),
        (lambda x: ct.batch_norm_overflow_detected(wait=MANY), "wait must be True or False"),
        (lambda x: ct.spatial_transformer(ct.TensorSpec(None, None, "x"), x), "x must be an array on"),
        (
            lambda x: ct.TensorDescriptor(ct.TensorSpec(None, (), "x")),
            "shape of a spec must be a tuple of ints",
        ),
        (
            lambda x: ct.synchronize(Said(__cuda_stream__=5)),
            "__cuda_stream__ of .* is malformed: got 5",
        ),
        (lambda x: x.__dlpack__(dl_device=0.5), "dl_device must be two integers"),
        (lambda x: x.__dlpack__(copy=MANY), "copy must be True or False"),
        (lambda x: x.fill("1"), "value must be a real number: got '1'"),
        (lambda x: x.fill(None), "value must be a real number: got None"),
        (lambda x: x.fill(np.datetime64(3, "s")), "value must be a real number"),
        (lambda x: x.__dlpack__(max_version=1.0), "max_version must be two integers"),
        (lambda x: x.fill(object()), "value must be a real number"),
        (lambda x: RNN.algorithms(3), "x_shape must be a sequence of integers"),
        (lambda x: RNN.algorithms((1, 1, 2), training=MANY), "training must be True or False"),
        (lambda x: RNN.pack_params(5), "a mapping by names or a sequence, not int"),
        (lambda x: RNN.pack_params([1, 2]), r"l0.W_hidden must be an array of shape \(3, 2\), not int"),
        (lambda x: RNN.split_params(x, "0"), "layer must be an int: got '0'"),
        (lambda x: RNN.from_torch([]), "a state is a mapping from names to arrays, not list"),
        (lambda x: RNN.from_torch({}, prefix=3), "prefix must be a string, not 3"),
        (lambda x: RNN.to_torch(x, prefix=3), "prefix must be a string, not 3"),
    ],
)
def test_what_is_of_a_wrong_type_is_named(
    fake: FakeCudnn, call: Callable[[Any], object], message: str
) -> None:
    weights = ct.asarray(np.zeros(RNN.weight_size, np.float32))
    with pytest.raises(TypeError, match=message):
        call(weights if "RNN" in call.__code__.co_names else images(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ct.TensorSpec.packed((2, 3), "float32", MANY), "layout must be one of nchw, nhwc"),
        (lambda: ct.dnn.GpuDnnConvDesc("valid", conv_mode=MANY), "conv_mode must be one of conv, cross"),
        (lambda: ct.dnn.GpuDnnReduction([]), "red_op must be one of"),
        (lambda: ct.dnn.GpuDnnSoftmax("fast", "channel", tensor_format=MANY), "tensor_format must be"),
        (lambda: ct.dnn.dnn_conv(None, None, direction_hint=MANY), "direction_hint must be one of"),
    ],
)
def test_what_is_no_choice_is_named(fake: FakeCudnn, call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_dtype_that_nothing_can_encode(fake: FakeCudnn) -> None:
    with pytest.raises(TypeError, match="cuDNN has no dtype \ud800; it has float32"):
        ct.TensorSpec.packed((2, 3), "\ud800")


def test_what_stands_for_true_and_false_is_taken(fake: FakeCudnn) -> None:
    x = images(1, 2, 3, 4)
    for yes in (True, 1, np.True_, np.int64(1)):
        assert ct.reduce_with_indices(x, op="max", axis=1, keepdims=yes).indices.shape == (1, 1, 3, 4)
        assert RNN.algorithms((1, 1, 2), training=yes, measure=not yes)
    assert dnn_context(np.int64(0)) == dnn_context("cuda0") == 0
    with pytest.raises(BufferError, match="must be the array's own device"):
        x.__dlpack__(dl_device=(1, -1))
    with pytest.raises(ValueError, match="lacks weight_hh_l0, weight_ih_l0 and has 5"):
        RNN.from_torch({5: np.ones(2)})
    with pytest.raises(ValueError, match="value is too large for float32"):
        x.fill(10**400)


def test_an_operand_that_is_none_is_named(fake: FakeCudnn) -> None:
    dy, *others = images(2, 3, 4, 5), *(images(1, 3, 1, 1) for _ in range(3))
    with pytest.raises(TypeError, match="x must be an array on the device, not object"):
        ct.batch_norm_inference_backward(dy, object(), *others)


def test_the_reference_takes_numpy_arrays_and_real_numbers() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match="out must be a NumPy array, not int"):
        reference.softmax(x, out=5)
    with pytest.raises(TypeError, match="alpha must be a number: got 1j"):
        reference.softmax(x, alpha=1j)
    with pytest.raises(TypeError, match="beta must be a number: got 'x'"):
        reference.softmax(x, beta="x", out=x.copy())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**20, 2**20, 2**10), "they are in rows, or one after another"),
        ((2**50,), rf"there are {2**50} labels; label_lengths \(1, 2\) add up to 3"),
        ((2**50, 1), rf"there are {2**50} rows of labels; the batch has 2 sequences"),
    ],
)
def test_labels_larger_than_any_list(shape: tuple[int, ...], message: str) -> None:
    labels = np.broadcast_to(np.int32(1), shape)
    with pytest.raises(ValueError, match=message):
        check_ctc_operands((9, 2, 4), labels, [1, 2], [9, 8])
    wide = np.broadcast_to(np.int32(1), (2, 2**50))
    assert check_ctc_operands((9, 2, 4), wide, [1, 2], [9, 8])[0] == ((1,), (1, 1))


def test_raw_explains_what_it_refuses(fake: FakeCudnn) -> None:
    with pytest.raises(
        TypeError, match=r"cudnnGetErrorString\(status: c_int\): status must be c_int, not tuple$"
    ):
        ct.raw.cudnnGetErrorString((1, 2))


def test_a_stream_is_known_by_what_made_it(fake: FakeCudnn) -> None:
    owner = Said(__cuda_stream__=(0, 0x70))
    assert streams.as_stream(owner, 0).handle == 0x70
    assert streams.as_stream(Said(ptr=0x80), 0).handle == 0x80
