"""Recurrent networks on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import RNN_ALGOS, RNN_MODES, RNNSpec, rnn_spec
from tests.layers import compare
from tests.rnn_cases import TOLERANCE, RNNCase, check_passes, check_weights, network, passes
from tests.strategies import placing

from .conftest import captured, examples, library, own_stream, place

EXAMPLES = examples(200)


def lstm(dtype: str = "float64", **options: Any) -> RNNSpec:
    return rnn_spec("lstm", 5, 4, 2, direction="bidirectional", dtype=dtype, **options)


# --- against the reference ---


@settings(max_examples=EXAMPLES)
@given(case=passes(least=1) | passes(("float32", "float64")))  # with sequences of no steps in the latter
def test_rnn_equals_reference(case: tuple[RNNCase, str]) -> None:
    check_passes(*case, place)


@pytest.mark.parametrize("lengths", [(4, 0, 0, 3, 0), (0, 1, 0, 4), (0, 0)], ids=str)
@pytest.mark.parametrize("size", [3, 5, 8])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rnn_of_half_precision_equals_reference_when_sequences_are_empty(
    dtype: str, mode: str, size: int, lengths: tuple[int, ...]
) -> None:
    """States of sequences without a step are copied at addresses that are multiples of two bytes only."""
    case = RNNCase(rnn_spec(mode, 4, size, 2, direction="bidirectional", dtype=dtype), 4, lengths, True, 0)
    check_passes(case, "sequence_major", place)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("offset", range(1, 8))
def test_rnn_equals_reference_when_operands_are_misaligned(offset: int, dtype: str) -> None:
    """Kernels that load several elements at once may end the CUDA context on memory that is not aligned."""
    for mode, size, lengths in (("lstm", 64, (6,) * 8), ("gru", 5, (6, 0, 3)), ("rnn_tanh", 32, (4, 2))):
        spec = rnn_spec(mode, size, size, 2, direction="bidirectional", dtype=dtype)
        check_passes(RNNCase(spec, 6, lengths, True, offset), "sequence_major", placing(place, offset))


@pytest.mark.parametrize("lengths", [(6,) * 8, (1, 6, 2, 5, 3, 6, 4, 2)], ids=str)
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mode", RNN_MODES)
@pytest.mark.parametrize("algo", RNN_ALGOS)
def test_rnn_algorithm_equals_reference(
    algo: str, mode: str, dtype: str, direction: str, lengths: tuple[int, ...]
) -> None:
    """Sizes that persistent kernels take; what is not written stays NaN."""
    if mode == "rnn_relu" and dtype in ("float16", "bfloat16"):
        pytest.skip("slopes of relu depend on roundings")
    case = RNNCase(rnn_spec(mode, 64, 64, 2, direction=direction, dtype=dtype), 6, lengths, True, 0)
    try:
        check_passes(case, "sequence_major", place, algo=algo)
    except ct.NotSupportedError as error:
        if algo == "standard":
            raise
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rnn_equals_reference_on_tensor_cores(dtype: str) -> None:
    """The default precision: TF32 for float32."""
    case = RNNCase(rnn_spec("gru", 64, 128, 1, dtype=dtype), 6, (6, 6), True, 1)
    net = ct.RNN("gru", 64, 128, dtype=dtype)
    got = net.forward(ct.asarray(case.x), net.pack_params(case.tame))
    wanted = rnn(case.x, case.tame, case.spec)
    compare(got.y, wanted.y, tolerance=max(TOLERANCE[dtype], 5e-3))


# --- torch ---


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("bias", ["no_bias", "double_bias"])
@pytest.mark.parametrize(
    ("mode", "projection"), [("rnn_tanh", 0), ("rnn_relu", 0), ("gru", 0), ("lstm", 0), ("lstm", 3)]
)
def test_rnn_equals_torch_with_its_weights(mode: str, projection: int, bias: str, direction: str) -> None:
    torch = library("torch")
    kind = {"rnn_tanh": "RNN", "rnn_relu": "RNN", "gru": "GRU", "lstm": "LSTM"}[mode]
    options: dict[str, Any] = {"nonlinearity": mode.removeprefix("rnn_")} if kind == "RNN" else {}
    if projection:
        options["proj_size"] = projection
    options |= {"bias": bias == "double_bias", "bidirectional": direction == "bidirectional"}
    module = getattr(torch.nn, kind)(5, 4, 2, dtype=torch.float64, **options)
    net = ct.RNN(mode, 5, 4, 2, direction=direction, bias=bias, projection_size=projection, dtype="float64")
    w = net.from_torch(module.state_dict())
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    wanted, states = module(x)
    done = net.forward(ct.asarray(x.detach().numpy()), w, training=True)
    compare(done.y, wanted.detach().numpy())
    hy = states[0] if mode == "lstm" else states
    compare(done.hy, hy.detach().numpy())
    dy = torch.randn_like(wanted)
    wanted.backward(dy)
    compare(net.backward_data(ct.asarray(dy.numpy()), done.reserve).dx, x.grad.numpy())
    gradients = net.to_torch(net.backward_weights(done.reserve))
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), atol=1e-11, err_msg=name)
    for name, array in net.to_torch(w).items():
        np.testing.assert_array_equal(array, module.state_dict()[name].numpy())


# --- dropout ---


def test_rnn_gradients_equal_differences_when_elements_are_dropped() -> None:
    case = RNNCase(rnn_spec("lstm", 8, 16, 2, dropout=0.4, dtype="float64"), 4, (4, 4), False, 0)
    net, x, w = case.operands()
    net.forward(x, w, training=True)
    saved = net.dropout_state.save()
    dy, along = case.random((4, 2, 16), 3), case.random(case.x.shape, 4)

    def passed(step: float) -> Any:
        net.dropout_state.restore(saved)
        return net.forward(ct.asarray(case.x + step * along), w, training=True)

    slope = float((net.backward_data(ct.asarray(dy), passed(0).reserve).dx.numpy() * along).sum())
    up, down = ((passed(step).y.numpy() * dy).sum() for step in (1e-5, -1e-5))
    assert abs(slope - (up - down) / 2e-5) <= 1e-6 * max(1.0, abs(slope))


# --- algorithms ---


def test_rnn_autotune_times_all_algorithms() -> None:
    net = ct.RNN("lstm", 256, 256, dtype="float16", algo="autotune")
    table = net.algorithms((20, 32, 256), training=True)
    usable = [row for row in table if not row.rejected]
    assert usable
    assert [row.time_ms for row in usable] == sorted(row.time_ms or 0 for row in usable)
    x = ct.zeros((20, 32, 256), "float16")
    w = ct.zeros((net.weight_size,), "float16")
    net.forward(x, w, training=True)
    assert "autotune" in net.describe()
    for row in usable:
        chosen = ct.RNN("lstm", 256, 256, dtype="float16", algo=row)
        assert not chosen.forward(x, w).y.numpy().any()


def test_rnn_recompiles_for_another_batch_and_length() -> None:
    """A compiled network is of one batch."""
    case = RNNCase(rnn_spec("lstm", 64, 64), 6, (6,) * 8, False, 0)
    net, _, w = case.operands(algo="persist_dynamic")
    for batch, steps in ((8, 6), (4, 6), (8, 3), (4, 6)):
        x = case.random((steps, batch, 64), 9)
        try:
            y = net.forward(ct.asarray(x), w).y
        except ct.NotSupportedError as error:
            pytest.skip(str(error).splitlines()[0])
        compare(y, rnn(x, case.tame, case.spec).y, tolerance=3e-5)


# --- streams, threads, graphs ---


def test_captured_rnn_equals_reference() -> None:
    case = RNNCase(lstm("float32"), 3, (3, 1), False, 0)
    net, stream = network(case.spec), own_stream()
    w, x = net.pack_params(case.tame, stream=stream), ct.asarray(case.x, stream=stream)
    out = net.forward(x, w, lengths=(3, 1), stream=stream)[:3]
    net.forward(x, w, lengths=(3, 1), out=out, stream=stream)
    ct.synchronize(stream)
    graph = captured(stream, lambda: net.forward(x, w, lengths=(3, 1), out=out, stream=stream))
    ct.empty_cache()
    for salt in (20, 21):
        fresh = case.random(case.x.shape, salt)
        ct.transform(ct.asarray(fresh, stream=stream), out=x, stream=stream)
        out[0].fill(np.nan, stream=stream)
        graph.launch(stream)
        ct.synchronize(stream)
        compare(out[0], rnn(fresh, case.tame, case.spec, lengths=(3, 1)).y, tolerance=3e-5)


def test_rnn_computes_on_several_streams_and_threads() -> None:
    case = RNNCase(rnn_spec("gru", 64, 64, 2), 20, (20,) * 16, False, 0)
    net, x, w = case.operands()
    wanted = rnn_backward(case.x, case.tame, case.spec, np.ones((20, 16, 64), np.float32))

    def work() -> None:
        first, second = own_stream(), own_stream()
        for _ in range(5):
            done = net.forward(x, w, training=True, stream=first)
            dy = ct.full((20, 16, 64), 1.0, stream=first)
            compare(net.backward_data(dy, done.reserve, stream=second).dx, wanted.dx, tolerance=1e-4)
            dw = net.backward_weights(done.reserve, stream=first)
            check_weights(dw, case.spec, wanted.dweights, 1e-4)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
