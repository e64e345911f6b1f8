"""Convolution end to end on the fakes, with properties that only fakes can show."""

from __future__ import annotations

import copy
import ctypes
import enum
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct import _caches, algo_cache, context, testing
from cudnn_ct._bindings.enums import ActivationMode, ConvolutionFwdAlgo, ConvolutionMode, MathType
from cudnn_ct.cuda.stream import Stream, default_stream
from cudnn_ct.errors import (
    CudnnWarning,
    ExecutionFailedError,
    NotInitializedError,
    NotSupportedError,
    VersionMismatchError,
)
from cudnn_ct.ops.conv.candidates import CONVOLUTIONS
from cudnn_ct.ops.conv.legacy import candidates
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import TensorSpec
from tests.conv_cases import OPERATIONS, conv_cases, int8_cases
from tests.layers import LayerCase, check_layer
from tests.mixed import in_threads
from tests.strategies import VIEWS, own, placing

from .cudnn import FakeCudnn, FakeLibrary
from .host import ForeignArray, Host

pytestmark = pytest.mark.usefixtures("fake")


def images(*shape: int, dtype: str = "float32") -> ct.DeviceArray:
    return ct.asarray(np.arange(np.prod(shape), dtype=dtype).reshape(shape) % 5 - 2)


OFFSETS = st.just((0,)) | st.tuples(*[st.integers(0, 7)] * 5)  # elements behind a 16-byte boundary


def algorithms(fake: FakeCudnn) -> list[str]:
    """The algorithms that convolutions were run with, in order."""
    return [
        ConvolutionFwdAlgo(args[7]).name for name, args in fake.calls if name == "cudnnConvolutionForward"
    ]


@pytest.mark.parametrize("direction", OPERATIONS)
@given(data=st.data(), offsets=OFFSETS)
def test_conv_equals_reference_when_engines_are_supported(
    fake: FakeCudnn, host: Host, direction: str, data: st.DataObject, offsets: tuple[int, ...]
) -> None:
    """All examples share prepared calls: a key that leaves something out gives a wrong result."""
    fake.engines, fake.engine_workspace, fake.workspaces = True, 100, {"GEMM": 60, "ALGO_1": 60}
    case = data.draw(conv_cases(direction, packed=True))
    for place in (own, lambda array: ForeignArray(host, array)):
        check_layer(case, placing(place, *offsets))


# --- one call after another ---


def test_stream_is_set_once_and_only_on_change(fake: FakeCudnn) -> None:
    x, w = images(1, 1, 4, 4), images(1, 1, 2, 2)
    ct.conv(x, w)
    assert fake.names().count("cudnnSetStream") == 1  # of the handle, which may come from another thread
    fake.calls.clear()
    with ct.use(stream=0x77):
        ct.conv(x, w)
        ct.conv(x, w)
    ct.conv(x, w, stream=0x77)
    ct.conv(x, w)
    assert [args[1] for name, args in fake.calls if name == "cudnnSetStream"] == [0x77, 1]


def test_workspace_grows_and_each_stream_has_its_own(fake: FakeCudnn) -> None:
    """The fake overwrites all of a workspace, after checking that all of it is memory that is alive."""
    small, large, w = images(1, 3, 5, 6), images(2, 3, 5, 6), images(4, 3, 3, 3)
    addresses = {}
    for size, x in ((100, small), (5000, large), (100, small)):
        fake.workspaces = {"GEMM": size}
        for stream in (1, 0x77):
            ct.conv(x, w, stream=stream)
            addresses[stream] = fake.calls[-1][1][8]
    assert addresses[1] != addresses[0x77]


def test_missing_symbol_says_which_version_has_it(fake: FakeCudnn) -> None:
    fake.missing.add("cudnnSubquadraticOpsVersionCheck")
    library = FakeLibrary(fake)
    with pytest.raises(VersionMismatchError, match=r"needs cuDNN >= 9\.2\d\.\d, have 9\.19\.0"):
        library.cudnnSubquadraticOpsVersionCheck()


def test_precision_and_settings_are_part_of_the_key(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    math = []
    for allow, precision in ((True, None), (False, None), (False, "tf32"), (True, "float32")):
        monkeypatch.setattr(ct.config, "allow_tf32", allow)
        ct.conv(x, w, precision=precision)
        math.append(fake._get(fake.calls[-1][1][6], "convolution")["math"])
    assert math == [MathType.DEFAULT_MATH, MathType.FMA_MATH, MathType.DEFAULT_MATH, MathType.FMA_MATH]


def misaligned(host: Host, array: ct.DeviceArray) -> ForeignArray:
    """The same numbers at an address that is not a multiple of 16 bytes."""
    memory = np.zeros(array.size + 1, array.dtype)
    view = memory[1:].reshape(array.shape)
    view[...] = array.numpy()
    return ForeignArray(host, view)


@pytest.mark.parametrize("other", ["with alpha", "with beta", "misaligned"])
def test_conv_rejected_for_factors_or_an_address_leaves_other_calls_their_algorithm(
    fake: FakeCudnn, host: Host, other: str
) -> None:
    x, w, out = images(2, 3, 5, 6), images(4, 3, 3, 3), ct.zeros((2, 4, 3, 4))
    options = {"with alpha": {"alpha": 2}, "with beta": {"beta": 2, "out": out}, "misaligned": {}}[other]
    first = misaligned(host, x) if other == "misaligned" else x
    ct.conv(x, w, out=out)
    ct.conv(first, w, **{"out": out} | options)
    fake.calls.clear()
    fake.fail_at = {1: 3000}
    ct.conv(first, w, **{"out": out} | options)
    ct.conv(x, w, out=out)
    assert algorithms(fake) == ["GEMM", "IMPLICIT_GEMM", "GEMM"]


# --- algorithms ---


def test_conv_takes_the_next_algorithm_when_one_is_rejected(fake: FakeCudnn) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    fake.refused.add("GEMM")
    np.testing.assert_array_equal(ct.conv(x, w).numpy(), ct.reference.conv(x.numpy(), w.numpy()))
    assert algorithms(fake) == ["IMPLICIT_GEMM"]


def test_conv_drops_an_algorithm_for_good_when_its_run_is_rejected(fake: FakeCudnn) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    ct.conv(x, w)
    fake.calls.clear()
    fake.fail_at = {1: 3000}
    y = ct.conv(x, w)
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x.numpy(), w.numpy()))
    ct.conv(x, w)
    assert algorithms(fake) == ["GEMM", "IMPLICIT_GEMM", "IMPLICIT_GEMM"]


def test_conv_lists_all_reasons_when_no_algorithm_is_supported(fake: FakeCudnn) -> None:
    fake.refused |= {"GEMM", "IMPLICIT_GEMM"}
    with pytest.raises(NotSupportedError) as caught:
        ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3))
    message = str(caught.value)
    assert "float32[2, 3, 5, 6] nchw" in message
    for name in ("gemm", "implicit_gemm", "direct"):
        assert f"legacy {name} " in message
    assert "CUDNN_STATUS_NOT_SUPPORTED (3000)" in message


def test_late_rejection_drops_only_the_candidate_that_ran(fake: FakeCudnn) -> None:
    """Two threads hold a plan for the same candidate; both fail, and only that candidate is out."""
    where = context.current(default_stream(0))
    problem = conv_problem("forward", TensorSpec.packed((2, 3, 5, 6)), TensorSpec.packed((4, 3, 3, 3)))
    mine, theirs = (algo_cache.select(problem, CONVOLUTIONS, where) for _ in range(2))
    x, w, y = images(2, 3, 5, 6), images(4, 3, 3, 3), ct.empty((2, 4, 3, 4))
    for choice in (mine, theirs):
        fake.calls.clear()
        fake.fail_at = {1: 3000}
        choice.run_first(where, (x.pointer, w.pointer, y.pointer), 1, 0, compare=False)
        assert algorithms(fake) == ["GEMM", "IMPLICIT_GEMM"]


def test_bounded_dict_drops_the_oldest_entry() -> None:
    bounded = _caches.BoundedDict(2)
    for i in range(10):
        bounded.setdefault(i, i)
    assert list(bounded) == [8, 9]


def test_bounded_dict_keeps_its_limit_while_another_thread_adds_an_entry() -> None:
    class Shared(_caches.BoundedDict):
        """The first iterator is invalid before its first step, as if a thread had added an entry then."""

        def __iter__(self) -> Iterator[Any]:
            found = super().__iter__()
            if len(self) == self.limit:
                dict.__setitem__(self, "theirs", 1)
            return found

    shared = Shared(2)
    for name in ("first", "second", "third"):
        shared[name] = 1
    assert [*dict.keys(shared)] == ["theirs", "third"]


def test_strict_float32_overrides_the_math_type_of_the_heuristics(fake: FakeCudnn) -> None:
    fake.math_of_rows = MathType.TENSOR_OP_MATH_ALLOW_CONVERSION
    ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), precision="float32")
    assert fake._get(fake.calls[-1][1][6], "convolution")["math"] == MathType.FMA_MATH


def test_legacy_candidate_has_its_limit_as_reason_when_x_is_too_large() -> None:
    where = context.current(default_stream(0))
    big = TensorSpec.packed((2, 1, 40_000, 40_000), "float16")
    problem = conv_problem("forward", big, TensorSpec.packed((1, 1, 1, 1), "float16"))
    (row,) = candidates(problem, where)
    assert row.rejected == "x spans 3,200,000,000 elements; a legacy descriptor holds fewer than 2**31"


def test_conv_passes_the_strides_of_the_layout_when_an_axis_has_length_1(fake: FakeCudnn) -> None:
    x = images(2, 1, 4, 4).view_as(TensorSpec((2, 1, 4, 4), (16, 5, 4, 1), "float32"))
    ct.conv(x, images(1, 1, 2, 2))
    (arguments,) = [args for name, args in fake.calls if name == "cudnnConvolutionForward"]
    assert tuple(fake._get(arguments[2], "tensor")["strides"]) == (16, 16, 4, 1)


def test_conv_writes_next_to_its_operand_when_slices_do_not_overlap() -> None:
    """The result may be between the images of its input."""
    both = ct.zeros((2, 6, 4, 4))
    strides = both.spec.strides

    def part(first: int, count: int) -> ct.DeviceArray:
        spec = TensorSpec((2, count, 4, 4), strides, "float32")
        return ct.DeviceArray.over(spec, both.pointer + 4 * first * 16, both, both.writer, both.home)

    both.fill(1)
    w = ct.full((3, 3, 1, 1), 1.0)
    ct.conv(part(0, 3), w, out=part(3, 3))
    assert (both.numpy()[:, 3:] == 3).all()
    with pytest.raises(ValueError, match="out overlaps"):
        ct.conv(part(0, 3), w, out=part(2, 3))


def test_workspaces_of_other_streams_are_freed_when_memory_is_short(fake: FakeCudnn, host: Host) -> None:
    x, w, y = images(1, 3, 5, 6), images(4, 3, 3, 3), ct.zeros((1, 4, 3, 4))
    fake.workspaces = {"GEMM": 1 << 20}
    ct.conv(x, w, out=y, stream=0x77)
    host.limit = host.used() + (1 << 19)
    ct.conv(x, w, out=y)
    assert fake.calls[-1][1][8], "the algorithm with a workspace"
    assert host.used() <= host.limit


def test_captured_workspace_is_kept(fake: FakeCudnn, host: Host) -> None:
    small, large, w = images(1, 3, 5, 6), images(2, 3, 5, 6), images(4, 3, 3, 3)
    run = Stream(0x77, 0)
    fake.workspaces = {"GEMM": 100}
    message = "make the same call once on this stream before capturing"
    with host.captured(0x77), pytest.raises(NotInitializedError, match=message):
        ct.conv(small, w, stream=run)
    ct.conv(small, w, stream=run)
    with host.captured(0x77):
        y = ct.conv(small, w, stream=run)
        captured = fake.calls[-1][1][8]
    fake.workspaces = {"GEMM": 5000}
    ct.conv(large, w, stream=run)
    ct.empty_cache()
    host.check(captured, 100)
    del y


def test_captured_engine_is_kept_with_its_pointers(fake: FakeCudnn, host: Host) -> None:
    fake.engines = True
    x, w, run = images(1, 3, 5, 6), images(4, 3, 3, 3), Stream(0x77, 0)
    y, pinned = ct.conv(x, w, stream=run), testing.cache_sizes()["captured"].entries
    with host.captured(0x77):
        ct.conv(x, w, out=y, stream=run)
        assert testing.cache_sizes()["captured"].entries >= pinned + 3  # handle, plan, pointers


def test_first_call_runs_in_relaxed_capture_mode_and_later_calls_do_not(fake: FakeCudnn, host: Host) -> None:
    x, w = images(1, 3, 5, 6), images(4, 3, 3, 3)
    calls: list[Callable[[], Any]] = [
        lambda: ct.conv(x, w),
        lambda: ct.conv(x, w, algo="time_once"),
        lambda: ct.activation(x),
        lambda: ct.batch_norm_training(x, ct.full((1, 3, 1, 1), 1.0), ct.full((1, 3, 1, 1), 0.0)),
    ]
    for call in calls:
        fake.calls.clear()
        fake.relaxed.clear()
        call()
        enqueued = {"cudnnCreate", "cudnnConvolutionForward", "cudnnActivationForward"} & set(fake.names())
        assert enqueued <= fake.relaxed
        assert fake.relaxed
        assert not host.relaxed
        fake.relaxed.clear()
        call()
        assert not fake.relaxed


def test_plan_reports_facts_when_the_stream_it_was_made_on_is_destroyed(fake: FakeCudnn, host: Host) -> None:
    x, w = images(1, 3, 5, 6), images(4, 3, 3, 3)
    fake.workspaces = {"GEMM": 100}
    out = ct.full((1, 4, 3, 4), np.nan)
    plan = ct.conv_plan(x, w, stream=0x77)
    plan(x, w, out=out, stream=0x77)
    plan(x, w, out=out)  # the handle works on another stream now
    host.destroyed.add(0x77)

    def check(_: int) -> None:
        assert "legacy gemm" in plan.describe()
        assert (plan.workspace, plan.candidate.algorithm, plan.fallback_reason) == (100, "gemm", "")

    check(0)
    in_threads(1, check)
    assert not [entry for entry in host.log if entry[0] == "destroyed stream used"]


def test_autotuning_on_operands_of_another_stream_is_ordered_after_their_writer(host: Host) -> None:
    x, w = images(1, 1, 4, 4), images(1, 1, 2, 2)
    host.log.clear()
    ct.conv_plan(x, w, algo="autotune", stream=0x77)
    waits = [(entry[1], entry[2][2]) for entry in host.log if entry[0] == "wait"]
    assert waits.count((0x77, 1)) == 2
    assert [[stream.handle for stream in one._uses.events] for one in (x, w)] == [[0x77], [0x77]]


def test_conv_algorithms_times_the_call_with_its_factors(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, out = images(1, 1, 4, 4), images(1, 1, 2, 2), ct.zeros((1, 1, 3, 3))
    convolve, factors = fake.cudnnConvolutionForward, set()

    def watched(*args: Any) -> Any:
        factors.add(tuple(ctypes.c_float.from_address(args[place]).value for place in (1, 10)))
        return convolve(*args)

    monkeypatch.setattr(fake, "cudnnConvolutionForward", watched)
    with testing.install(FakeLibrary(fake)):
        ct.conv_algorithms(x, w, alpha=3, beta=0.5, out=out)
    assert factors == {(3, 0.5)}
    assert "scaled by beta" in str(ct.conv_algorithms(x, w, measure=False, beta=0.5, out=out).problem)


def test_plan_checks_operands_again_when_anything_but_their_address_differs(host: Host) -> None:
    x, w, out = images(1, 1, 4, 4), images(1, 1, 2, 2), ct.zeros((1, 1, 3, 3))
    plan = ct.conv_plan(x, w)
    readonly = ct.DeviceArray.over(out.spec, out.pointer, out, out.writer, out.home, readonly=True)
    other = ForeignArray(host, np.zeros((1, 1, 3, 2), np.float32))
    for keywords, message in (
        ({"stream": default_stream(1)}, "x is on another device"),
        ({"out": readonly}, "out is read-only"),
        ({"out": ct.zeros((1, 1, 3, 2))}, "the plan was prepared for"),
        ({"out": other}, "the plan was prepared for"),
        ({"out": other}, "the plan was prepared for"),
    ):
        plan(x, w, out=out)
        with pytest.raises(ValueError, match=message):
            plan(x, w, **{"out": out} | keywords)


def test_stream_waits_for_the_allocation_of_its_workspace(fake: FakeCudnn, host: Host) -> None:
    """The memory belongs to a stream of the package, because the caller may destroy this one."""
    x, w = images(1, 3, 5, 6), images(4, 3, 3, 3)
    fake.workspaces = {"GEMM": 100}
    host.log.clear()
    ct.conv(x, w, stream=0x77)
    allocated = [place for place, entry in enumerate(host.log) if entry[0] == "allocate" and entry[1] != 0x77]
    waits = [place for place, entry in enumerate(host.log) if entry[:2] == ("wait", 0x77)]
    assert len(allocated) == 1
    assert any(place > allocated[0] for place in waits), host.log


def test_workspace_of_a_destroyed_stream_is_freed_on_another_stream(fake: FakeCudnn, host: Host) -> None:
    x, w = images(1, 3, 5, 6), images(4, 3, 3, 3)
    fake.workspaces = {"GEMM": 100}
    used = host.used()
    ct.conv(x, w, stream=0x77)
    fake.workspaces = {"GEMM": 200}
    host.log.clear()
    ct.conv(images(2, 3, 5, 6), w, stream=0x77)  # which frees the first
    recorded = {entry[2] for entry in host.log if entry[:2] == ("record", 0x77)}
    own = next(entry[1] for entry in host.log if entry[0] == "allocate" and entry[1] not in (0x77, 1))
    assert [entry for entry in host.log if entry[:2] == ("wait", own) and entry[2] in recorded]
    assert not [
        entry for entry in host.log if entry[0] == "synchronize_device"
    ]  # while the stream exists, no host waits
    host.destroyed.add(0x77)
    host.log.clear()
    ct.empty_cache()
    names = [entry[0] for entry in host.log]
    assert names.index("synchronize_device") < names.index("free")
    assert "destroyed stream used" not in names
    host.destroyed.clear()
    assert host.used() == used


def test_use_of_memory_is_recorded_when_a_later_part_fails(fake: FakeCudnn) -> None:
    x = ct.asarray(np.ones((1, 2, 3, 4, 5)), layout="nhwc")
    w = ct.asarray(np.ones((2, 2, 2, 2, 2)), layout="nhwc")
    fake.fail["cudnnConvolutionForward"] = 5000
    with pytest.raises(ExecutionFailedError):
        ct.conv(x, w, stream=0x77)
    assert "cudnnTransformTensor" in fake.names()
    assert [stream.handle for stream in x._uses.events] == [0x77]


def test_array_of_another_library_is_waited_for_at_each_call(host: Host) -> None:
    kept = ct.asarray(ForeignArray(host, np.zeros((1, 1, 4, 4), np.float32), Stream(0x99, 0)))
    w = images(1, 1, 1, 1)
    ct.conv(images(1, 1, 4, 4), w, out=kept)
    host.log.clear()
    ct.conv(kept, w)  # its owner may have written again
    assert (1, 0x99) in [(entry[1], entry[2][2]) for entry in host.log if entry[0] == "wait"]


def test_conv_takes_another_algorithm_with_one_warning_when_a_workspace_does_not_fit(
    fake: FakeCudnn, host: Host
) -> None:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    fake.workspaces = {"GEMM": 1 << 20}
    host.limit = 2 << 20
    ct.conv(x, w, padding=1)  # decided while there was room
    context.current(default_stream(0))._workspaces.clear()
    host.limit = host.used() + 8192
    with pytest.warns(CudnnWarning, match="ran instead"):
        y = ct.conv(x, w, padding=1)
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x.numpy(), w.numpy(), padding=1))
    ct.conv(x, w, padding=1)  # warnings are errors: a second one would fail
    host.limit = 2**32
    fake.calls.clear()
    ct.conv(x, w, padding=1)
    assert algorithms(fake) == ["GEMM"]  # memory is there again


def test_conv_raises_memory_error_when_the_result_does_not_fit(host: Host) -> None:
    x, w = images(2, 3, 50, 60), images(40, 3, 3, 3)
    host.limit = host.used() + 100
    with pytest.raises(MemoryError, match="for the result of a convolution"):
        ct.conv(x, w)


# --- failures ---


def test_failed_call_has_the_problem_as_note(fake: FakeCudnn) -> None:
    fake.fail["cudnnConvolutionForward"] = 5000
    with pytest.raises(ExecutionFailedError, match="CUDNN_STATUS_EXECUTION_FAILED") as caught:
        ct.conv(images(2, 3, 5, 6), images(4, 3, 3, 3), stride=2, alpha=3)
    note, hint = caught.value.__notes__
    assert "CUDNN_CT_DEBUG_SYNC=1" in hint
    assert "x float32[2, 3, 5, 6] nchw" in note
    assert "stride (2, 2)" in note
    assert "alpha 3" in note


# --- int8 ---


@pytest.mark.parametrize("engines", [False, True])
@given(case=int8_cases(VIEWS), offsets=OFFSETS)
def test_int8_convolution_equals_reference_in_its_current_layout(
    fake: FakeCudnn, host: Host, engines: bool, case: LayerCase, offsets: tuple[int, ...]
) -> None:
    fake.engines = engines
    x, w = (one for one in case.operands if one)
    try:
        check_layer(case, placing(lambda array: ForeignArray(host, array), *offsets))
    except NotSupportedError as error:  # int8 operands are not copied
        contiguous = x.view == w.view == "packed" and x.layout == w.layout
        one_dtype = case.outs and case.outs["out"].dtype == "float32"
        assert not (contiguous and one_dtype) or isinstance(case.keywords["padding"], tuple), error


def test_empty_int8_convolution_is_int32() -> None:
    assert ct.conv(ct.empty((0, 3, 5, 6), "int8"), images(4, 3, 3, 3, dtype="int8")).spec.dtype == "int32"
    y = ct.conv(ct.empty((2, 0, 4, 4), "int8"), ct.empty((3, 0, 2, 2), "int8"))
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 3, 3, 3), np.int32))


def test_int8_plans_and_lists_take_the_dtype_from_out() -> None:
    x, w = images(2, 3, 5, 6, dtype="int8"), images(4, 3, 3, 3, dtype="int8")
    out = ct.full((2, 4, 3, 4), np.nan)
    plan = ct.conv_plan(x, w, out=out)
    assert plan(x, w, out=out) is out
    np.testing.assert_array_equal(out.numpy(), ct.reference.conv(x.numpy(), w.numpy()))
    assert plan(x, w).spec.dtype == "float32"
    with pytest.raises(ValueError, match="the plan was prepared for float32"):
        plan(x, w, out=ct.zeros(out.shape, "int32"))
    assert any(not row.rejected for row in ct.conv_algorithms(x, w, out=out, measure=False))
    (*_, legacy_row) = ct.conv_algorithms(x, w, measure=False)
    assert "not int32" in legacy_row.rejected


class Box:
    """A number that changes, as a tensor of another library may."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __index__(self) -> int:
        return self.n


def test_mutable_parameter_is_read_at_each_call() -> None:
    x, w, box, sizes = ct.full((1, 2, 4, 4), 1.0), ct.full((1, 2, 3, 3), 1.0), Box(0), [0, 0]
    for n in (0, 1, 2):
        box.n = sizes[0] = n
        size = 2 + 2 * n
        assert ct.conv(x, w, padding=box).shape == (1, 1, size, size)
        assert ct.conv(x, w, padding=(box, 0)).shape == (1, 1, size, 2)
        assert ct.conv(x, w, padding=sizes).shape == (1, 1, size, 2)
        assert ct.conv_bias_activation(x, w, None, padding=box).shape == (1, 1, size, size)


class Mode(enum.IntEnum):
    """Names of cuDNN's modes with other numbers."""

    CROSS_CORRELATION = 0
    CONVOLUTION = 1


def test_enum_counts_by_its_name() -> None:
    x, w = ct.asarray(np.array([[[1, 2, 4]]], np.float32)), ct.asarray(np.array([[[1, -1]]], np.float32))
    flipped = ct.conv(x, w, mode=ConvolutionMode.CONVOLUTION).numpy()
    assert (ct.conv(x, w, mode=Mode.CROSS_CORRELATION).numpy() == -flipped).all()
    assert (ct.conv(x, w, mode=Mode.CONVOLUTION).numpy() == flipped).all()
    with pytest.raises(ValueError, match="mode"):
        ct.conv(x, w, mode=0)
    assert (ct.conv(x, w, padding=Mode.CONVOLUTION).numpy() == ct.conv(x, w, padding=1).numpy()).all()
    negative, one = ct.full((1, 1, 2, 2), -3.0), ct.full((1, 1, 1, 1), 1.0)
    for activation, wanted in ((ActivationMode.RELU, 0), (ActivationMode.IDENTITY, -3)):
        assert (ct.conv_bias_activation(negative, one, None, activation=activation).numpy() == wanted).all()


def test_plan_is_not_copied() -> None:
    plan = ct.conv_plan(ct.full((1, 2, 4, 4), 1.0), ct.full((1, 2, 3, 3), 1.0))
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="prepare another one"):
            way(plan)


def test_plan_ignores_strides_of_axes_of_length_1() -> None:
    """They address the same elements, and a message that compares two arrays in nchw names no difference."""
    x, w = images(2, 1, 4, 4), images(3, 1, 2, 2)
    plan = ct.conv_plan(x, w)
    expected = plan(x, w).numpy()
    moved = ct.DeviceArray.over(x.spec._replace(strides=(16, 99, 4, 1)), x.pointer, x, x.writer, x.home)
    for same in (moved, ct.asarray(x.numpy(), layout="nhwc")):
        for _ in range(9):  # also as a replay
            np.testing.assert_array_equal(plan(same, w).numpy(), expected)
    with pytest.raises(ValueError, match="the plan was prepared for"):
        plan(x[:, :, ::-1], w)
