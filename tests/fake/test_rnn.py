"""Recurrent networks on the fakes."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import example, given

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct._config import config
from cudnn_ct.cuda import lifetime
from cudnn_ct.cuda import stream as streams
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import RNN_ALGOS, rnn_parameters, rnn_spec
from tests.layers import compare
from tests.mixed import in_thread
from tests.rnn_cases import RNNCase, check_passes, check_weights, network, passes
from tests.strategies import own, placing, shifted

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host

pytestmark = pytest.mark.usefixtures("fake")

LSTM = rnn_spec("lstm", 5, 4, 2, direction="bidirectional", precision="float32")
CASE = RNNCase(LSTM, 3, (3, 1), True, 0)
PROJECTED = RNNCase(LSTM._replace(projection_size=2), 3, (0, 3, 0, 1), True, 0)  # cells longer than states
WITH_DROPOUT = CASE._replace(spec=LSTM._replace(dropout=0.5))
FORWARD = "cudnnRNNForward"
ONES = np.ones((3, 2, 8), np.float32)
SIDE = 0x50  # a stream


def operands(case: RNNCase = CASE, **options: Any) -> tuple[ct.RNN, ct.DeviceArray, ct.DeviceArray]:
    return case.operands(**options)


def algos(fake: FakeCudnn) -> list[str]:
    """The algorithms of the forward passes so far."""
    found = [args[1] for name, args in fake.calls if name == FORWARD]
    return [RNN_ALGOS[fake._get(network, "network")["algo"]] for network in found]


# --- results ---


@given(case=passes())
@example(case=(PROJECTED, "sequence_major"))
@example(case=(PROJECTED._replace(lengths=(0, 1, 2, 0), states=False), "batch_major"))
def test_rnn_equals_reference(host: Host, case: tuple[RNNCase, str]) -> None:
    check_passes(*case, lambda array: ForeignArray(host, array))


@pytest.mark.parametrize("algo", RNN_ALGOS)
def test_rnn_runs_the_algorithm_that_is_named(fake: FakeCudnn, algo: str) -> None:
    check_passes(CASE, "batch_major", ct.asarray, algo=algo)
    assert set(algos(fake)) == {algo}


def test_networks_that_differ_in_one_parameter_share_nothing() -> None:
    change = {"bias": "no_bias", "clip": (-0.1, 0.1), "direction": "unidirectional", "hidden_size": 3}
    change |= {"input_mode": "skip", "input_size": 2, "mode": "gru", "num_layers": 1, "projection_size": 2}
    square = LSTM._replace(input_size=4)
    for spec in (square, *(square._replace(**{name: value}) for name, value in change.items())):
        check_passes(CASE._replace(spec=spec), "sequence_major", ct.asarray, algo="standard")


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rnn_copies_misaligned_operands(dtype: str, offset: int) -> None:
    """The fake rejects memory that cuDNN's kernels may not load several elements at once from."""
    spec = network(LSTM._replace(dtype=dtype, compute="float32")).spec
    for case in (CASE._replace(spec=spec), RNNCase(spec, 3, (2, 0), False, 1)):
        check_passes(case, "sequence_major", placing(own, offset))


def test_rnn_makes_one_c_call_for_each_pass_when_repeated(fake: FakeCudnn) -> None:
    net, x, w = operands()
    for training in (False, True):
        first = net.forward(x, w, training=training)
        fake.calls.clear()
        second = net.forward(x, w, training=training)
        assert fake.names() == [FORWARD]
        np.testing.assert_array_equal(first.y.numpy(), second.y.numpy())
    for done in (first, second):
        fake.calls.clear()
        net.backward_data(ct.asarray(ONES), done.reserve)
        net.backward_weights(done.reserve)
    assert fake.names() == ["cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]  # the driver fills


def test_operands_with_gaps_are_copied_on_the_device(host: Host) -> None:
    net, _, w = operands()
    whole = np.zeros((3, 2, 7), np.float32)
    whole[..., :5] = CASE.x
    x = ForeignArray(host, whole[..., :5])
    compare(net.forward(x, w).y, rnn(CASE.x, CASE.tame, LSTM).y)
    done = net.forward(x, w, training=True)
    dy = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    wanted = rnn_backward(CASE.x, CASE.tame, LSTM, dy.swapaxes(0, 1))
    compare(net.backward_data(ForeignArray(host, dy.swapaxes(0, 1)), done.reserve).dx, wanted.dx)


def test_states_are_copied_when_no_sequence_has_a_step(fake: FakeCudnn, host: Host) -> None:
    net, x, w = operands()
    h0, c0 = (ct.full((4, 2, 4), value) for value in (0.5, 2.0))
    done = net.forward(x, w, h0, c0, lengths=[0, 0], padding_value=3, training=True)
    back = net.backward_data(None, done.reserve, ct.full((4, 2, 4), 7.0))
    for got, value in zip((*done[:3], *back), (3, 0.5, 2.0, 0, 7, 0), strict=True):
        assert (got.numpy() == value).all()
    assert not net.backward_weights(done.reserve).numpy().any()
    assert net.forward(ct.empty((0, 2, 5)), w).hy.shape == (4, 2, 4)
    with_gaps = ForeignArray(host, np.zeros((3, 0, 7), np.float32)[..., :5])
    for x in (with_gaps, ct.empty((3, 0, 5))):
        assert net.forward(x, w).y.shape == (3, 0, 8)
    assert net.forward(ct.empty((0, 5)), w, layout="packed", lengths=[0, 0]).y.shape == (0, 8)
    assert FORWARD not in fake.names()


# --- memory of results and operands ---


def test_out_takes_each_result() -> None:
    net, x, w = operands()
    y, kept = ct.empty((3, 2, 8)), ct.empty((4, 2, 4))
    done = net.forward(x, w, out=y)
    assert done.y is y
    assert done.hy.shape == done.cy.shape == (4, 2, 4)
    assert net.forward(x, w, out=(None, None, kept)).cy is kept
    for out, error, message in (
        (ct.empty((3, 2, 7)), ValueError, r"y of out has shape \(3, 2, 7\); the result has \(3, 2, 8\)"),
        ((None, ct.empty((4, 2, 4), "float16"), None), TypeError, "hy of out is float16; the result is"),
        ((None, kept, None), ValueError, "out overlaps"),
    ):
        with pytest.raises(error, match=message):
            net.forward(x, w, kept, out=out)


def test_results_must_not_overlap_also_at_addresses_accepted_before() -> None:
    """hy has more bytes than y."""
    net, _, w = operands()
    memory = ct.zeros((32,))
    y, hy = (memory.view_as(ct.TensorSpec.packed(shape)) for shape in ((1, 1, 8), (4, 1, 4)))
    x = memory.view_as(ct.TensorSpec.packed((1, 1, 5)), 8)
    net.forward(x, w, out=(y, None, None))
    with pytest.raises(ValueError, match="out overlaps"):
        net.forward(x, w, out=(None, hy, None))


def test_backward_data_must_not_overwrite_operands_of_backward_weights() -> None:
    net, x, w = operands()
    h0, c0 = (ct.full((4, 2, 4), value) for value in (0.5, 2.0))
    done = net.forward(x, w, h0, c0, training=True)
    for out in (x, (None, h0, None), (None, None, c0), (None, done.y.view_as(h0.spec), None)):
        with pytest.raises(ValueError, match="out overlaps"):
            net.backward_data(None, done.reserve, out=out)


# --- reserves ---


def test_a_reserve_is_used_once_by_each_gradient_and_in_order() -> None:
    net, x, w = operands()
    other, *_ = operands()
    reserve, dy = net.forward(x, w, training=True).reserve, ct.asarray(ONES)
    data = net.backward_data
    for call, error, message in (
        (lambda: net.backward_weights(reserve), ValueError, "reads what backward_data wrote"),
        (lambda: net.backward_weights(reserve, add=True), ValueError, "add=True needs out"),
        (lambda: data(ct.empty((3, 2, 4)), reserve), ValueError, r"dy has .* needs \(3, 2, 8\)"),
        (lambda: data(None, reserve, ct.empty((4, 2, 4), "float64")), TypeError, "network is float32.*dhy"),
        (lambda: other.backward_data(None, reserve), ValueError, "the reserve is of <RNN lstm 5 -> 4"),
        (lambda: data(None, None), TypeError, "not NoneType; forward gives one with training=True"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert "fresh" in repr(reserve)
    net.backward_data(dy, reserve)
    with pytest.raises(ValueError, match="used by backward_data before"):
        net.backward_data(dy, reserve)
    assert reserve.nbytes
    net.backward_weights(reserve)
    assert not reserve.nbytes
    with pytest.raises(ValueError, match="used by backward_weights before"):
        net.backward_weights(reserve)


def test_a_rejected_gradient_leaves_the_reserve_unchanged(fake: FakeCudnn) -> None:
    net, x, w = operands()
    reserve = net.forward(x, w, training=True).reserve
    for status, error in ((3000, ct.NotSupportedError), (5000, ct.ExecutionFailedError)):
        fake.fail["cudnnRNNBackwardData_v8"] = status
        with pytest.raises(error):
            net.backward_data(None, reserve)
    fake.fail.clear()
    with pytest.raises(ValueError, match="used by backward_data before"):
        net.backward_data(None, reserve)


def test_gradients_in_another_thread() -> None:
    net, x, w = operands()
    done = net.forward(x, w, training=True)
    dx = in_thread(lambda: net.backward_data(ct.asarray(ONES), done.reserve).dx.numpy())
    wanted = rnn_backward(CASE.x, CASE.tame, LSTM, ONES)
    np.testing.assert_allclose(dx, wanted.dx, atol=1e-5)
    check_weights(in_thread(lambda: net.backward_weights(done.reserve)), LSTM, wanted.dweights, 1e-5)


# --- errors before C ---


LENGTHS = "lengths must be integers, not "
BAD_CALLS: list[Any] = [
    (lambda n, _x, w: n.forward(ct.empty((3, 2, 4)), w), ValueError, r"\(T, B, 5\)"),
    (lambda n, x, w: n.forward(x, ct.empty(w.shape, "float16")), TypeError, "w is float16"),
    (lambda n, _, w: n.forward(None, w), TypeError, "x must be an array on the device, not NoneType"),
    (lambda n, x, w: n.forward(x, w, lengths=3), TypeError, LENGTHS + "3"),
    (lambda n, x, w: n.forward(x, w, lengths=np.array([3.0, 2.0])), TypeError, LENGTHS),
    (lambda n, x, w: n.forward(x, w, layout=["sequence_major"]), ValueError, "layout must be one of"),
    (lambda n, x, w: n.forward(x, w, padding_value="zero"), TypeError, "padding_value must be a number"),
    (
        lambda n, x, w: n.forward(x, w, out=(x,) * 4),
        ValueError,
        "out has 4 arrays; the results are y, hy, cy",
    ),
    (lambda n, _, w: n.split_params(w, 2), ValueError, "layer must be from 0 to 1, got 2"),
    (lambda n, _, w: n.split_params(w, 0, 2), ValueError, "direction must be from 0 to 1, got 2"),
    (lambda *_: ct.RNN("lstm", 5, 4, algo="quick"), ValueError, "algo must be one of heuristic"),
    (lambda *_: ct.RNN("lstm", 5, 4, seed=-1), ValueError, "seed must be between"),
    (lambda n, *_: n.dropout_state, ValueError, "no dropout state: dropout=0"),
    (lambda n, *_: n.colour, AttributeError, "no attribute 'colour'"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_rnn_rejects_arguments(fake: FakeCudnn, call: Any, error: type[Exception], message: str) -> None:
    """Also after a call with equal arguments."""
    net, x, w = operands()
    net.forward(x, w, lengths=(3, 2))
    fake.calls.clear()
    with pytest.raises(error, match=message):
        call(net, x, w)
    assert FORWARD not in fake.names()


def test_padding_is_compared_by_its_bytes(fake: FakeCudnn) -> None:
    net, x, w = operands()
    for padding in (0, -0.0, np.nan, float("nan"), 0.0):
        fake.calls.clear()
        past = net.forward(x, w, lengths=(3, 1), padding_value=padding).y.numpy()[1:, 1]
        np.testing.assert_array_equal(past, padding)
        assert (np.signbit(past) == np.signbit(padding)).all()
    assert fake.names() == [FORWARD]


# --- algorithms ---


@pytest.mark.parametrize(
    ("change", "described"),
    [
        ({"refused": {"STANDARD"}}, "rejected: legacy standard"),
        ({"moved": {"STANDARD": 4}}, "standard keeps l0.W_input at byte 4; it is at byte 0"),
    ],
)
def test_heuristic_falls_back_and_describes_the_reason(
    fake: FakeCudnn, change: dict[str, Any], described: str
) -> None:
    vars(fake).update(change)
    net, x, w = operands()
    net.forward(x, w)
    assert algos(fake) == ["persist_static"]
    assert described in net.describe()


def test_networks_that_differ_in_arithmetic_have_descriptors_of_their_own(fake: FakeCudnn) -> None:
    arithmetic = [  # the last differs from the first in the dtype alone
        *(("float32", "float32"), ("float32", "tf32")),
        *(("float16", "as_input_f32"), ("float16", "as_input"), ("bfloat16", "float32")),
    ]
    for dtype, precision in arithmetic:
        net, x, w = operands(CASE._replace(spec=LSTM._replace(dtype=dtype)), precision=precision)
        net.forward(x, w)
    made = [args[1:] for name, args in fake.calls if name == "cudnnSetRNNDescriptor_v8"]
    assert len(made) == len({args[5:8] for args in made}) == len(arithmetic)


def test_a_compiled_network_is_built_once_for_each_batch_before_it_runs(fake: FakeCudnn) -> None:
    net, x, w = operands(algo="persist_dynamic")
    for lengths in (None, (3, 2), (2, 2), None):
        y = net.forward(x, w, lengths=lengths).y
        compare(y, rnn(CASE.x, CASE.tame, LSTM, lengths=lengths).y)
    net.forward(ct.zeros((3, 4, 5)), w)
    net.forward(ct.zeros((5, 4, 5)), w)
    built = [args[2] for name, args in fake.calls if name == "cudnnBuildRNNDynamic"]
    assert built == [2, 2, 4]  # for packed and for padded data, then for the other batch


def test_autotune_takes_the_fastest_and_keeps_it(fake: FakeCudnn, on_disk: Path) -> None:
    costs = (5.0, 4.0, 1.5, 9.0)
    fake.costs = dict(zip(map(str.upper, RNN_ALGOS), costs, strict=True))
    fake.refused = {"PERSIST_STATIC"}
    net, x, w = operands(algo="autotune")
    done = net.forward(x, w, training=True)
    compare(done.y, rnn(CASE.x, CASE.tame, LSTM).y)
    assert algos(fake)[-1] == "persist_dynamic"
    assert len(set(algos(fake))) == 3
    forget()
    fake.calls.clear()
    again, x, w = operands(algo="autotune")
    again.forward(x, w, training=True)
    assert algos(fake) == ["persist_dynamic"]
    again.forward(x, w, lengths=(3, 1), training=True)
    fake.calls.clear()
    again.forward(x, w, lengths=(1, 2), training=True)  # other lengths, the same decision
    assert algos(fake) == ["persist_dynamic"]


def test_online_passes_run_the_heuristic_choice_alone(fake: FakeCudnn) -> None:
    """A trial after a training pass would overwrite its reserve, and draw from its dropout state."""
    net, x, w = operands(algo="online")
    for count in range(1, 4):
        net.forward(x, w, training=True)
        assert fake.names().count("cudnnRNNForward") == count
    assert "how: heuristic" in net.describe()


def test_autotune_leaves_out_compiled_algorithms_by_the_settings(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "algo_cache", "off")
    monkeypatch.setattr(config, "allow_runtime_compilation", False)
    net, x, w = operands(algo="autotune")
    net.forward(x, w)
    assert "persist_dynamic" not in algos(fake)
    assert "cudnnBuildRNNDynamic" not in fake.names()


def test_algorithms_lists_the_fastest_first_and_the_rejected_last(fake: FakeCudnn) -> None:
    fake.costs = {"STANDARD": 5.0, "PERSIST_DYNAMIC": 1.5}
    fake.refused = {"PERSIST_STATIC"}
    net, x, w = operands()
    table = net.algorithms((3, 2, 5), training=True)
    assert [row.algorithm for row in table] == [
        "persist_static_small_h", "persist_dynamic", "standard", "persist_static",
    ]  # fmt: skip
    assert table[0].time_ms == 1.0
    assert "3000" in table[-1].rejected
    assert "persist_dynamic" in str(table)
    fake.calls.clear()
    operands(algo=table[1])[0].forward(x, w)
    assert algos(fake) == ["persist_dynamic"]
    assert all(row.time_ms is None for row in net.algorithms((3, 2, 5), measure=False))


def test_workspace_limit_does_not_count_copies_of_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with and without copies share the decision about an algorithm."""
    net, x, w = operands(algo="standard")
    monkeypatch.setattr(config, "workspace_limit", 512)
    place = placing(own, 1)
    wanted = net.forward(x, w).y.numpy()
    np.testing.assert_array_equal(net.forward(place(CASE.x), place(w.numpy())).y.numpy(), wanted)


# --- weights ---


def test_split_params_are_writable_views_in_the_order_of_the_ids() -> None:
    net, _, w = operands()
    rows = [row for row in rnn_parameters(LSTM) if row.pseudo_layer == 3]
    parts = net.split_params(w, 1, 1)
    assert list(parts) == [row.name for row in rows]
    values = dict(zip((row.name for row in rnn_parameters(LSTM)), CASE.tame, strict=True))
    for name, view in parts.items():
        np.testing.assert_array_equal(view.numpy(), values[name])
    parts["l1_reverse.bR_output"].fill(7)
    np.testing.assert_array_equal(net.split_params(w, 1, 1)["l1_reverse.bR_output"].numpy(), np.full(4, 7.0))
    every = [part for layer in range(2) for d in range(2) for part in net.split_params(w, layer, d).values()]
    np.testing.assert_array_equal(net.pack_params(every).numpy(), w.numpy())
    assert net.weight_bytes == 4 * net.weight_size == 4 * w.size


def torch_tensor(array: np.ndarray) -> Any:
    """An object with the methods of a torch tensor that are called."""
    on_host = SimpleNamespace(numpy=lambda: array)
    return SimpleNamespace(detach=lambda: SimpleNamespace(cpu=lambda: on_host))


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("float16", "float16"), ("bfloat16", "float32"), ("float64", "float64")]
)
def test_to_torch_returns_dtypes_of_torch_and_from_torch_reads_tensors(dtype: str, wanted: str) -> None:
    net = ct.RNN("gru", 2, 3, dtype=dtype)
    w = ct.asarray(np.linspace(-1, 1, net.weight_size), dtype)
    state = net.to_torch(w, "encoder.")
    assert {array.dtype.name for array in state.values()} == {wanted}
    tensors = {name: torch_tensor(array) for name, array in state.items()} | {"other": object()}
    np.testing.assert_array_equal(net.from_torch(tensors, "encoder.").numpy(), w.numpy())


def test_weights_must_be_real_numbers() -> None:
    net = ct.RNN("rnn_tanh", 1, 1, bias="no_bias")
    state = {"weight_ih_l0": np.ones((1, 1)), "weight_hh_l0": np.ones((1, 1), "complex64")}
    with pytest.raises(TypeError, match=r"l0.R_hidden is complex64; weights are real numbers"):
        net.pack_params(list(state.values()))
    with pytest.raises(TypeError, match=r"^weight_hh_l0 is complex64; weights are real numbers"):
        net.from_torch(state)


# --- dropout ---


def test_rnn_gradient_has_the_masks_of_its_forward_pass(fake: FakeCudnn) -> None:
    net, x, w = operands(WITH_DROPOUT)
    back = net.backward_data(ct.asarray(ONES), net.forward(x, w, training=True).reserve)
    masks = fake.passes[-1].options["masks"]
    compare(back.dx, rnn_backward(CASE.x, CASE.tame, LSTM, ONES, masks=masks).dx)


def test_threads_have_their_own_native_networks(fake: FakeCudnn) -> None:
    net, x, w = operands(WITH_DROPOUT)

    def work(net: ct.RNN) -> None:
        for lengths in (None, None, (3, 1), (1, 1)):
            net.forward(x, w, lengths=lengths, training=True)

    work(net)
    in_thread(partial(work, net))
    used = [ctypes.cast(args[1], ctypes.c_void_p).value for name, args in fake.calls if name == FORWARD]
    mine, theirs = used[:4], used[4:]
    assert len(set(mine)) == len(set(theirs)) == 2  # for packed and for padded data
    assert not set(mine) & set(theirs)
    destroyed = fake.names().count("cudnnDestroyRNNDescriptor")
    del net
    gc.collect()
    assert fake.names().count("cudnnDestroyRNNDescriptor") == destroyed + 2


def test_training_passes_order_streams_by_the_dropout_state(host: Host) -> None:
    net, x, w = operands(WITH_DROPOUT)
    net.forward(x, w, training=True)  # makes the dropout state on the default stream
    kept = [net.forward(x, w, training=True, stream=SIDE)]
    host.log.clear()
    kept.append(net.forward(x, w, training=True, stream=0x60))
    assert host.orders(before=SIDE, after=0x60)


def test_benchmarks_restore_the_dropout_state() -> None:
    net, x, w = operands(WITH_DROPOUT, seed=3)
    timed, *_ = operands(WITH_DROPOUT, seed=3, algo="autotune")
    timed.algorithms((3, 2, 5), training=True)
    for _ in range(2):
        wanted = net.forward(x, w, training=True).y.numpy()
        np.testing.assert_array_equal(timed.forward(x, w, training=True).y.numpy(), wanted)


# --- captures, streams, copies ---

ONLY_INFERENCE = "only passes with training=False can be captured"


def check_not_captured(host: Host, fake: FakeCudnn, call: Callable[[], Any], message: str) -> None:
    """The call raises in a capture and enqueues nothing."""
    with host.captured(SIDE):
        fake.calls.clear()
        host.calls.clear()
        host.log.clear()
        with pytest.raises(ct.NotInitializedError, match=message):
            call()
    assert not {FORWARD, "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"} & set(fake.names())
    assert not {"cuMemcpyDtoDAsync", "synchronize"} & {*host.calls, *(entry[0] for entry in host.log)}


def test_a_captured_call_pins_its_plan(fake: FakeCudnn, host: Host) -> None:
    net, x, w = operands()
    out = ct.empty((3, 2, 8)), ct.empty((4, 2, 4)), ct.empty((4, 2, 4))
    net.forward(x, w, out=out, stream=SIDE)
    other = partial(net.forward, x, w, lengths=(3, 2), out=out, stream=SIDE)
    check_not_captured(host, fake, other, "must be made once before, on the same stream")
    pinned = testing.cache_sizes()["captured"].entries
    with host.captured(SIDE):
        net.forward(x, w, out=out, stream=SIDE)
    assert testing.cache_sizes()["captured"].entries > pinned
    del net, other
    gc.collect()
    assert "cudnnDestroyRNNDataDescriptor" not in fake.names()


@pytest.mark.parametrize("case", [CASE, WITH_DROPOUT])
@pytest.mark.parametrize("offset", [0, 1])
def test_training_is_not_captured(fake: FakeCudnn, host: Host, case: RNNCase, offset: int) -> None:
    """Also not the first pass, which makes the dropout state, and one with misaligned operands."""
    net, _, w = operands(case)
    x = own(shifted(case.x, offset))
    train = partial(net.forward, x, w, training=True, stream=SIDE)
    check_not_captured(host, fake, train, ONLY_INFERENCE)
    train()
    check_not_captured(host, fake, train, ONLY_INFERENCE)
    reserve = train().reserve
    for step in (partial(net.backward_data, None), net.backward_weights):
        check_not_captured(host, fake, partial(step, reserve, stream=SIDE), ONLY_INFERENCE)
        step(reserve, stream=SIDE)


def test_a_capture_waits_for_nothing(fake: FakeCudnn, host: Host) -> None:
    """The call was made before on another stream; a call like it left a workspace on this one."""
    net, x, w = operands()
    out = net.forward(x, w, lengths=(3, 1))[:3]
    net.forward(x, w, lengths=(3, 1), out=out)
    net.forward(x, w, lengths=(2, 2), stream=SIDE)
    call = partial(net.forward, x, w, lengths=(3, 1), out=out, stream=SIDE)
    check_not_captured(host, fake, call, "make the same call once on this stream before")
    call()
    with host.captured(SIDE):
        call()


def test_lengths_are_kept_until_other_streams_are_done(host: Host) -> None:
    net, x, w = operands()
    net.forward(x, w, stream=SIDE)
    host.log.clear()
    del net
    gc.collect()
    assert [line[:2] for line in host.log if line[0] in ("wait", "free")] == [("wait", 1), ("free", ANY)]


def test_training_pass_keeps_its_state_when_a_finalizer_runs_another_pass() -> None:
    net, x, w = operands()
    wanted = net.forward(x, w, training=True).y.numpy()
    net.forward(x, w)
    inner: list[ct.DeviceArray] = []

    def finalizer() -> bool:
        """Run within the next allocation, and once."""
        if not inner:
            inner.append(net.forward(x, w).y)
        return True

    lifetime.defer(finalizer)
    done = net.forward(x, w, training=True)
    assert inner
    np.testing.assert_array_equal([done.y.numpy(), inner[0].numpy()], [wanted, wanted])
    net.backward_data(None, done.reserve)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_networks_drop_their_calls(duplicate: Callable[[Any], Any]) -> None:
    network = ct.RNN("rnn_tanh", 4, 4)
    x, weights = ct.full((3, 2, 4), 1.0), ct.full((network.weight_size,), 0.5)
    expected = network.forward(x, weights)[0].numpy()
    here = context.current(streams.default_stream(0))
    before = len(here.plans)
    again = duplicate(network)
    assert (again.forward(x, weights)[0].numpy() == expected).all()
    assert len(here.plans) == before + 1
    del again
    gc.collect()
    assert len(here.plans) == before
