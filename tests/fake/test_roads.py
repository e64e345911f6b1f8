"""What every operation but convolution shares: keys, refusals, pieces, threads. On the fakes."""

from __future__ import annotations

import copy
import gc
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._bindings.enums import OpTensorOp, ReduceTensorOp
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops._fallback import Implementation
from cudnn_ct.ops.reduce.legacy import reduction
from cudnn_ct.shapes.reduction import ReduceProblem
from cudnn_ct.shapes.specs import TensorSpec

from .cudnn import FakeCudnn
from .host import Host
from .test_conv import images


class Knob:
    """A number that can be turned, as arrays without axes are."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


# --- keys ---


def test_what_can_change_is_taken_as_it_is(fake: FakeCudnn) -> None:
    x, coefficient = images(2, 3), Knob(1)
    for value in (1.0, 3.0):
        coefficient.value = value
        got = ct.activation(x, mode="elu", coefficient=coefficient)
        np.testing.assert_allclose(
            got.numpy(), ct.reference.activation(x.numpy(), mode="elu", coefficient=value)
        )


def test_a_call_that_was_made_lets_no_other_pass_for_it(fake: FakeCudnn) -> None:
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


def test_numpy_numbers_are_numbers(fake: FakeCudnn) -> None:
    x = images(2, 3, 6, 6)
    y = ct.pool(x, window=np.int64(2), padding=np.array(0), stride=(np.int32(2), 2))
    np.testing.assert_array_equal(y.numpy(), ct.reference.pool(x.numpy(), window=2))


# --- refusals ---


def test_what_no_descriptor_holds_is_refused_with_the_callers_numbers(fake: FakeCudnn) -> None:
    spec = ct.TensorSpec.packed((4, 2**30, 2))
    x = images(4)
    large = ct.DeviceArray(spec, x.pointer, x, x.writer)
    with pytest.raises(NotSupportedError, match=r"(?s)softmax over axes \[1\].*float32\[4, 1073741824, 2\]"):
        ct.softmax(large, out=large)


def test_numbers_that_are_none(fake: FakeCudnn) -> None:
    with pytest.raises(ValueError, match="too large for a float"):
        ct.activation(images(2, 3), coefficient=10**400)
    with pytest.raises(ValueError, match="must be finite"):
        ct.lrn(images(2, 3, 4), k=float("nan"))
    with pytest.raises(ValueError, match="4 x inf pixels"):
        ct.spatial_transformer(images(2, 3, 4, 4), images(2, 2, 3), scale_width=1e308)
    with pytest.raises(TypeError, match="x must be an array on the device, not list"):
        ct.spatial_transformer([[1]], images(2, 2, 3))
    with pytest.raises(ValueError, match="saved has invalid values"):
        ct.DropoutState().restore([-1] * 64)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(ct.DropoutState())


def test_a_factor_is_a_number(fake: FakeCudnn) -> None:
    x = images(2, 3, 4)
    for call in (
        ct.add,
        lambda a, b, alpha: ct.reduce(a, alpha=alpha),
        lambda a, b, alpha: ct.softmax(a, alpha=alpha),
    ):
        for alpha in ("x", (2, 3), None):
            with pytest.raises(TypeError, match="alpha must be"):
                call(x, x, alpha=alpha)
    with pytest.raises(TypeError, match="alpha must be"):
        ct.conv_backward_bias(x, alpha="x")


# --- memory and settings ---


def test_a_view_takes_no_way_from_others(fake: FakeCudnn) -> None:
    """Some kernels need memory that begins at multiples of 16 bytes; calls on other memory go elsewhere."""
    whole = ct.asarray(np.arange(2 * 3 * 8 + 1, dtype=np.float32) % 5)
    spec = ct.TensorSpec.packed((2, 3, 8), "float32")
    for offset in (0, 1, 0, 1, 0):
        x = ct.DeviceArray(spec, whole.pointer + 4 * offset, whole, whole.writer, whole.home)
        fake.calls.clear()
        got = ct.conv_backward_bias(x).numpy()
        np.testing.assert_array_equal(got, ct.reference.conv_backward_bias(x.numpy()))
        names = fake.names()
        assert ("cudnnConvolutionBackwardBias" in names) == (offset == 0)
        assert ("cudnnReduceTensor" in names) == (offset == 1)


def test_settings_are_heeded_by_the_next_call(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ways = (
        Implementation(lambda *_: asked.append(ct.config.allow_runtime_compilation)),
        Implementation(reduction),
    )
    module = import_module("cudnn_ct.ops.reduce.reduce")
    monkeypatch.setattr(module, "_REDUCE", module._REDUCE._replace(implementations=ways))
    x = images(2, 3)
    for compiled in (True, False, False):
        monkeypatch.setattr(ct.config, "allow_runtime_compilation", compiled)
        ct.reduce(x, axis=1)
    assert asked == [True, False]


def test_deterministic_sums_take_no_graph_that_is_not(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("cudnn_ct.ops.reduce.graph")
    monkeypatch.setattr(module, "first_plan", lambda *_: SimpleNamespace(workspace=0))
    x = TensorSpec.packed((2048, 1024), "float32")
    for axes, same in (((0,), False), ((0, 1), False), ((1,), True)):
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
        problem = ReduceProblem(x, TensorSpec.packed(shape, "float32"), None, axes, "add", True)
        for deterministic in (False, True):
            monkeypatch.setattr(ct.config, "deterministic", deterministic)
            assert (module.reduction(problem, None) is None) == (deterministic and not same)


# --- in place ---


def test_the_identity_in_place_copies_nothing_onto_itself(fake: FakeCudnn) -> None:
    x = images(2, 3)
    before = x.numpy()
    ct.activation(x, mode="identity", out=x, alpha=2, beta=1)
    assert "cudnnTransformTensor" not in fake.names()  # which does not work in place
    np.testing.assert_array_equal(x.numpy(), 3 * before)
    np.testing.assert_array_equal(x.numpy(), 3 * before)


def test_strides_of_one_element_make_no_other_place(fake: FakeCudnn) -> None:
    x = images(1, 4)
    same = ct.DeviceArray(ct.TensorSpec((1, 4), (99, 1), "float32"), x.pointer, x, x.writer, x.home)
    expected = ct.reference.softmax(x.numpy())
    ct.softmax(x, out=same)
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)


# --- threads ---


def test_thread_that_ends_leaves_no_memory_and_one_idle_handle(fake: FakeCudnn, host: Host) -> None:
    x = images(2, 3, 6, 6)
    memory = host.used()

    def work() -> None:
        ct.pool(x, window=2, padding=((0, 1), (1, 0)))

    gc.disable()
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert [state["kind"] for state in fake.objects.values()].count("handle") == 1
        assert host.used() == memory
    finally:
        gc.enable()
