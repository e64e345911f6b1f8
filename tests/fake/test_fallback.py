"""Operations with ordered implementations: keys, rejections, pieces and misaligned operands. On the fakes."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._bindings.enums import OpTensorOp, ReduceTensorOp
from cudnn_ct.errors import NotSupportedError

from .cudnn import FakeCudnn
from .test_conv import images


def test_arguments_are_rejected_when_equal_ones_of_another_type_were_accepted(fake: FakeCudnn) -> None:
    x = images(2, 3, 4)
    ct.softmax(x, axis=1)
    with pytest.raises(TypeError, match="axis must be an int"):
        ct.softmax(x, axis=1.0)
    ct.reduce(x, op=ReduceTensorOp.AMAX)
    assert OpTensorOp.SQRT == ReduceTensorOp.AMAX
    with pytest.raises(ValueError, match="op must be one of"):
        ct.reduce(x, op=OpTensorOp.SQRT)
    with pytest.raises(TypeError, match="axis must be an int or a tuple of ints"):
        ct.reduce(x, axis=(axis for axis in (0, 1)))


def test_pool_takes_numbers_of_numpy(fake: FakeCudnn) -> None:
    x = images(2, 3, 6, 6)
    y = ct.pool(x, window=np.int64(2), padding=np.array(0), stride=(np.int32(2), 2))
    np.testing.assert_array_equal(y.numpy(), ct.reference.pool(x.numpy(), window=2))


# --- rejections ---


def test_operation_names_its_operands_when_no_descriptor_holds_them(fake: FakeCudnn) -> None:
    spec = ct.TensorSpec.packed((4, 2**30, 2))
    x = images(4)
    large = ct.DeviceArray.over(spec, x.pointer, x, x.writer)
    with pytest.raises(NotSupportedError, match=r"(?s)softmax over axes \[1, 2\].*\[4, 1073741824, 2\]"):
        ct.softmax(large, axis=(1, 2), out=large)


def test_warm_call_begins_with_the_first_implementation_when_all_were_rejected(fake: FakeCudnn) -> None:
    x = images(2, 3, 4, 5)
    want = ct.reference.conv_backward_bias(x.numpy())
    ct.conv_backward_bias(x)
    fake.fail = dict.fromkeys(("cudnnConvolutionBackwardBias", "cudnnReduceTensor"), 3000)
    messages = set()
    for _ in range(2):
        with pytest.raises(NotSupportedError, match="cudnnReduceTensor returned") as caught:
            ct.conv_backward_bias(x)
        messages.add(str(caught.value))
    assert len(messages) == 1
    fake.fail = {}
    fake.calls.clear()
    np.testing.assert_array_equal(ct.conv_backward_bias(x).numpy(), want)
    assert "cudnnReduceTensor" not in fake.names()
    assert "rejected" not in ct.last_plan().plan


# --- memory and settings ---


def test_implementation_rejected_for_misaligned_operands_stays_for_aligned_ones(fake: FakeCudnn) -> None:
    whole = ct.asarray(np.arange(2 * 3 * 8 + 1, dtype=np.float32) % 5)
    spec = ct.TensorSpec.packed((2, 3, 8), "float32")
    for offset in (0, 1, 0, 1, 0):
        x = ct.DeviceArray.over(spec, whole.pointer + 4 * offset, whole, whole.writer, whole.home)
        fake.calls.clear()
        got = ct.conv_backward_bias(x).numpy()
        np.testing.assert_array_equal(got, ct.reference.conv_backward_bias(x.numpy()))
        names = fake.names()
        assert ("cudnnConvolutionBackwardBias" in names) == (offset == 0)
        assert ("cudnnReduceTensor" in names) == (offset == 1)
        assert ("cudnnConvolutionBackwardBias" in ct.last_plan().plan) == (offset == 0)


def test_reduce_takes_no_graph_whose_bits_vary_when_results_must_be_deterministic(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.engines = True
    monkeypatch.setattr(import_module("cudnn_ct.ops.reduce.plans"), "MIN_ELEMENTS", 64)
    x = images(128, 512)
    expected = np.abs(x.numpy()).sum(1, dtype=np.float64)

    def ran_by_graph(varying: bool, deterministic: bool | None = None) -> bool:
        fake.varying, before = varying, len(fake.executed)
        testing.reset()
        y = ct.reduce(x, op="norm1", axis=1, deterministic=deterministic).numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-3)
        assert (len(fake.executed) - before > 1) == bool(deterministic)  # the bits of 20 runs
        return "cudnnReduceTensor" not in fake.names()

    assert ran_by_graph(varying=True)
    assert ran_by_graph(varying=False, deterministic=True)
    assert not ran_by_graph(varying=True, deterministic=True)


# --- in place ---


def test_identity_in_place_copies_nothing(fake: FakeCudnn) -> None:
    x = images(2, 3)
    before = x.numpy()
    ct.activation(x, mode="identity", out=x, alpha=2, beta=1)
    assert "cudnnTransformTensor" not in fake.names()  # which does not work in place
    np.testing.assert_array_equal(x.numpy(), 3 * before)
    np.testing.assert_array_equal(x.numpy(), 3 * before)


def test_softmax_in_place_ignores_strides_of_axes_of_length_1(fake: FakeCudnn) -> None:
    x = images(1, 4)
    same = ct.DeviceArray.over(ct.TensorSpec((1, 4), (99, 1), "float32"), x.pointer, x, x.writer, x.home)
    expected = ct.reference.softmax(x.numpy())
    ct.softmax(x, out=same)
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
