"""CTC losses on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

import cudnn_ct as ct
from tests.ctc_cases import FAR_CASES, LOST_CASES, CTCCase, FarCase, check_ctc, check_far, ctc_cases
from tests.strategies import placing

from .conftest import captured, library, own_stream, place

ALGOS = ("deterministic", "non_deterministic")

# cuDNN takes exponentials and logarithms in float32, step after step; the reference in float64.
TOLERANCE = {"float32": 2e-4, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-10}
SURE = ("float32", "float16", "bfloat16")  # float64 is for newer cuDNN


@settings(max_examples=max(600, settings.default.max_examples))
@example(case=CTCCase(((), ()), (0, 0), 0, 3))
@example(case=CTCCase(((1,), ()), (0, 0), 0, 3, out_of_bound="skip", out="packed"))
@example(case=CTCCase((), (), 3, 4))
@example(case=CTCCase(((1, 1),) * 3, (2,) * 3, 2, 3, out="packed", out_of_bound="skip"))
@given(case=ctc_cases(dtypes=SURE) | ctc_cases(possible=True, dtypes=SURE))
def test_ctc_loss_equals_reference(case: CTCCase) -> None:
    check_ctc(case, place, TOLERANCE[case.dtype])


@given(case=ctc_cases(possible=True, dtypes=("float64",)))
def test_ctc_loss_of_float64_equals_reference_or_is_rejected(case: CTCCase) -> None:
    try:
        check_ctc(case, place, TOLERANCE["float64"])
    except ct.NotSupportedError as error:
        assert "CTC loss" in str(error)


@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("offset", range(4))
def test_ctc_loss_equals_reference_when_operands_are_misaligned(offset: int, normalization: str) -> None:
    """Kernels that load several elements at once do not get such memory."""
    case = CTCCase(((1, 2), (), (3, 3), (1,)), (4, 2, 5, 6), 6, 4, out="packed", both=True)
    check_ctc(case._replace(normalization=normalization), placing(place, offset), 1e-4)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("count", [1, 31, 32, 63, 64, 127, 128, 200, 254, 255])
def test_ctc_loss_equals_reference_when_labels_are_long(count: int, algo: str) -> None:
    """Around powers of two, for which descriptors are made, and up to the most that cuDNN takes."""
    rng = np.random.default_rng(count)
    labels = tuple(tuple(rng.integers(1, 29, n).tolist()) for n in (count, max(count // 2, 1), 1))
    case = CTCCase(labels, (2 * count + 40, count + 20, 5), 2 * count + 50, 29, algo=algo)
    check_ctc(case, place, 5e-3)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("steps", [1, 500, 2000])
def test_ctc_loss_equals_reference_with_many_time_steps_and_symbols(steps: int, algo: str) -> None:
    rng = np.random.default_rng(steps)
    labels = tuple(tuple(rng.integers(1, 1000, min(steps, 60)).tolist()) for _ in range(4))
    tolerance = 0.12 if steps == 2000 else 2e-2  # 0.053 and 0.003 were seen
    check_ctc(CTCCase(labels, (steps,) * 4, steps, 1000, algo=algo), place, tolerance)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("steps", [(1,), (40, 40, 40), (40, 9, 40), (7, 31, 31, 12)])
def test_ctc_loss_without_softmax_equals_reference(steps: tuple[int, ...], algo: str) -> None:
    labels = tuple((1, 2, 2)[: min(end, 3)] for end in steps)
    case = CTCCase(labels, steps, max(steps), 20, algo=algo, normalization="none", seed=3)
    check_ctc(case, place, TOLERANCE["float32"])
    for view, out, bound in (("transposed", "transposed", "zero"), ("packed", "packed", "skip")):
        check_ctc(case._replace(view=view, out=out, out_of_bound=bound), place, TOLERANCE["float32"])


@pytest.mark.parametrize("algo", ALGOS)
def test_ctc_loss_equals_reference_when_probabilities_are_0(algo: str) -> None:
    """Zeros for a symbol outside the labels, for a label at some steps, and for the blank at one."""
    values = CTCCase(((1, 2), (2,)), (9, 6), 9, 4, normalization="none").logits
    values[:, 0, 3] = values[4:7, :, 1] = values[3, 0, 0] = 0
    integers = [1, 2, 2], [2, 1], [9, 6]
    expected = ct.reference.ctc_loss(values, *integers, normalization="none")
    got = ct.ctc_loss(ct.asarray(values), *integers, normalization="none", algo=algo)
    np.testing.assert_allclose(got.loss.numpy(), expected.loss, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.gradient.numpy(), expected.gradient, rtol=0, atol=2e-4)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", FAR_CASES, ids=str)
def test_ctc_loss_equals_reference_when_probabilities_round_to_0_or_1(
    case: FarCase, dtype: str, algo: str
) -> None:
    try:
        check_far(case, place, dtype, algo)
    except ct.NotSupportedError:
        assert dtype not in SURE


@pytest.mark.parametrize("case", LOST_CASES, ids=str)
def test_ctc_loss_is_nan_when_all_alignments_are_out_of_range(case: FarCase) -> None:
    check_far(case, place, "float32", lost=True)


@pytest.mark.parametrize("algo", ALGOS)
def test_ctc_loss_without_softmax_equals_reference_when_probabilities_are_1(algo: str) -> None:
    case = CTCCase(((1, 2), (1,), (3,)), (2, 5, 4), 5, 4, normalization="none")
    values = case.logits
    values[:2, 0] = np.eye(4)[[1, 2]]
    values[:4, 2] = np.eye(4)[[3, 3, 0, 0]]
    expected = ct.reference.ctc_loss(values, *case.integers, normalization="none")
    got = ct.ctc_loss(place(values), *case.integers, normalization="none", algo=algo)
    np.testing.assert_allclose(got.gradient.numpy(), expected.gradient, rtol=0, atol=2e-5)
    np.testing.assert_allclose(got.loss.numpy(), expected.loss, rtol=1e-5, atol=2e-5)


def test_ctc_loss_propagates_nan_of_logits() -> None:
    values = LABELLED.logits
    values[1, 0, 3] = np.nan
    got = ct.ctc_loss(place(values), *LABELLED.integers)
    assert np.isnan(got.loss.numpy()).tolist() == [True, False, False]
    assert np.isnan(got.gradient.numpy()[: LABELLED.steps[0], 0]).any()
    assert np.isfinite(got.gradient.numpy()[:, 1:]).all()


def test_captured_ctc_loss_equals_reference_when_probabilities_round_to_1() -> None:
    stream = own_stream()
    case = FAR_CASES[-1]
    labels = [ct.asarray(np.array(n, np.int32), stream=stream) for n in (case.labels, [2], [case.steps])]
    logits = ct.asarray(case.logits.astype(np.float32), stream=stream)
    out = ct.ctc_loss(logits, *labels, stream=stream)
    graph = captured(stream, lambda: ct.ctc_loss(logits, *labels, out=out, stream=stream))
    graph.launch(stream)
    ct.synchronize(stream)
    expected = ct.reference.ctc_loss(case.logits, case.labels, [2], [case.steps])
    np.testing.assert_allclose(out.loss.numpy(), expected.loss, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.gradient.numpy(), expected.gradient, rtol=0, atol=2e-4)


@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("count", [0, 1])
def test_ctc_loss_equals_reference_when_sequences_have_no_labels(
    count: int, algo: str, normalization: str
) -> None:
    """Alone in a batch, and beside others; as many steps as others, and not."""
    case = CTCCase(((), (1, 2) * count, (), ()), (7, 6, 9, 9), 9, 4, algo=algo, normalization=normalization)
    check_ctc(case, place, TOLERANCE["float32"])


@pytest.mark.parametrize("normalization", ["softmax", "none"])
def test_ctc_loss_equals_reference_when_long_sequences_have_no_labels(normalization: str) -> None:
    case = CTCCase(((), (1,), (), ()), (800, 9, 800, 799), 801, 300, normalization=normalization)
    check_ctc(case, place, 5e-3)


def test_deterministic_ctc_loss_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    logits = ct.asarray(rng.standard_normal((300, 32, 100)).astype(np.float32))
    labels = rng.integers(1, 100, (32, 60))
    first = ct.ctc_loss(logits, labels, [60] * 32, [300] * 32)
    for _ in range(10):
        again = ct.ctc_loss(logits, labels, [60] * 32, [300] * 32)
        np.testing.assert_array_equal(again.loss.numpy(), first.loss.numpy())
        np.testing.assert_array_equal(again.gradient.numpy(), first.gradient.numpy())


# --- CUDA graphs ---


CASE = CTCCase(((1, 2, 2), (), (3,)), (9, 7, 8), 9, 5)
LABELLED = CASE._replace(labels=((1, 2, 2), (4, 3), (3,)))


def replayed(case: CTCCase, integers: list[Any], stream: Any) -> tuple[Any, Any, Any]:
    """A graph of one call, what it reads logits from, and its results."""
    logits = ct.asarray(case.logits, stream=stream)
    out = ct.ctc_loss(logits, *integers, **case.mathematics, stream=stream)
    ct.ctc_loss(logits, *integers, **case.mathematics, out=out, stream=stream)
    ct.synchronize(stream)
    graph = captured(
        stream, lambda: ct.ctc_loss(logits, *integers, **case.mathematics, out=out, stream=stream)
    )
    return graph, logits, out


@pytest.mark.parametrize(
    ("labelled", "on_device"),
    [
        (CASE, False),
        (LABELLED, True),
        (LABELLED._replace(normalization="none"), False),
        (CASE._replace(steps=(3, 7, 0), out_of_bound="skip"), False),
    ],
    ids=str,
)
def test_captured_ctc_loss_equals_reference(labelled: CTCCase, on_device: bool) -> None:
    stream = own_stream()
    integers: list[Any] = list(labelled.integers)
    if on_device:
        integers = [ct.asarray(array, stream=stream) for array in integers]
    graph, logits, result = replayed(labelled, integers, stream)
    ct.empty_cache()
    for seed in (1, 2):
        case = labelled._replace(seed=seed)
        ct.transform(ct.asarray(np.nan_to_num(case.logits), stream=stream), out=logits, stream=stream)
        result.gradient.fill(7.0, stream=stream)
        graph.launch(stream)
        ct.synchronize(stream)
        out = np.full(case.logits.shape, 7, np.float32)
        expected = ct.reference.ctc_loss(case.logits, *case.integers, **case.mathematics, out=out)
        np.testing.assert_allclose(result.gradient.numpy(), expected.gradient, rtol=0, atol=1e-4)
        np.testing.assert_allclose(result.loss.numpy(), expected.loss, rtol=1e-4, atol=1e-4)


def test_captured_ctc_loss_reads_the_labels_at_each_launch() -> None:
    stream = own_stream()
    integers = [ct.asarray(array, stream=stream) for array in LABELLED.integers]
    graph, _, result = replayed(LABELLED, integers, stream)
    other = LABELLED._replace(labels=((4, 1, 3), (2, 2), (2,)))
    torch = library("torch")
    torch.cuda.synchronize()
    torch.from_dlpack(integers[0]).copy_(torch.from_numpy(other.integers[0]))
    torch.cuda.synchronize()
    graph.launch(stream)
    ct.synchronize(stream)
    expected = ct.reference.ctc_loss(LABELLED.logits, *other.integers)
    np.testing.assert_allclose(result.loss.numpy(), expected.loss, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.gradient.numpy(), expected.gradient, rtol=0, atol=1e-4)
