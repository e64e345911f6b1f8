"""CTC losses end to end on the fakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct._bindings.enums import CTCLossAlgo
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotInitializedError, NotSupportedError
from cudnn_ct.ops.ctc import ctc as ops
from tests.ctc_cases import FAR_CASES, LOST_CASES, CTCCase, FarCase, check_ctc, check_far, ctc_cases
from tests.strategies import shifted

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

pytestmark = pytest.mark.usefixtures("fake")

BATCH = CTCCase(((1, 2), (), (3, 3)), (4, 2, 5), 6, 4)
LABELLED = BATCH._replace(labels=((1, 2), (2,), (3, 3)))
NAMES = ("labels", "label_lengths", "input_lengths")


def call(case: CTCCase = BATCH, **change: Any) -> Any:
    arguments = dict(zip(NAMES, case.integers, strict=True))
    arguments |= {"logits": ct.asarray(case.logits), "algo": case.algo, "normalization": case.normalization}
    return ct.ctc_loss(**(arguments | change))


def check(got: Any, case: CTCCase = BATCH, tolerance: float = 1e-5) -> None:
    """Compare a result with the reference."""
    expected = ct.reference.ctc_loss(case.logits, *case.integers, normalization=case.normalization)
    np.testing.assert_allclose(got.gradient.numpy(), expected.gradient, atol=tolerance)
    np.testing.assert_allclose(got.loss.numpy(), expected.loss, rtol=tolerance)


@settings(max_examples=3 * settings.default.max_examples)
@given(case=ctc_cases() | ctc_cases(possible=True))
def test_ctc_loss_equals_reference(host: Host, case: CTCCase) -> None:
    check_ctc(case, lambda array: ForeignArray(host, array))


SKIPS: dict[str, Any] = {"out": "packed", "out_of_bound": "skip"}
NONE: dict[str, Any] = {"normalization": "none"}


@pytest.mark.parametrize(
    "case",
    [
        CTCCase(((), ()), (0, 0), 0, 3),
        CTCCase(((1,), ()), (0, 0), 0, 3, **SKIPS),
        CTCCase((), (), 3, 4),
        CTCCase(((1, 1),) * 3, (2,) * 3, 2, 3, **SKIPS),
        CTCCase(((), (), ()), (5, 5, 5), 5, 3),
        CTCCase(((), (), (1,), ()), (4, 1, 3, 4), 6, 3, **NONE),
        CTCCase(((1,),), (1,), 1, 2, **NONE),
        CTCCase(((1,),) * 3, (4,) * 3, 4, 3, **NONE),
        CTCCase(((1,), (2, 1), (1,)), (2, 4, 2), 5, 3, "float64", **NONE),
        CTCCase(((1, 1), (2, 1), (), (), (1,)), (2, 4, 0, 3, 5), 6, 3, **SKIPS, **NONE),
        CTCCase(((1, 1), (2, 1), ()), (2, 4, 3), 6, 3, "float16", "transposed", **SKIPS),
        CTCCase(((), (1,), (), ()), (0, 0, 2, 3), 3, 3, **SKIPS),
        CTCCase(((1,) * 300, (1,)), (9, 9), 9, 2),
    ],
    ids=str,
)
def test_ctc_loss_equals_reference_at_edges(host: Host, case: CTCCase) -> None:
    check_ctc(case, lambda array: ForeignArray(host, array))


@pytest.mark.parametrize(
    ("algo", "any_kind", "function"),
    [
        ("deterministic", False, "cudnnCTCLoss_v8"),
        (CTCLossAlgo.DETERMINISTIC, False, "cudnnCTCLoss_v8"),
        ("non_deterministic", False, "cudnnCTCLoss"),
        ("NON_DETERMINISTIC", True, "cudnnCTCLoss_v8"),
    ],
)
def test_ctc_loss_calls_the_function_that_has_the_algorithm(
    fake: FakeCudnn, algo: Any, any_kind: bool, function: str
) -> None:
    fake.ctc_of_any_kind = any_kind
    call(algo=algo)
    made = [(name, args) for name, args in fake.calls if name in ("cudnnCTCLoss", "cudnnCTCLoss_v8")]
    assert [name for name, _ in made] == [function]
    place = 1 if function == "cudnnCTCLoss_v8" else 9
    assert CTCLossAlgo(made[0][1][place]).name.lower() == str(getattr(algo, "name", algo)).lower()


_SUMS = ["cudnnReduceTensor"] * 2


@pytest.mark.parametrize(
    ("normalization", "conversion"),
    [
        ("softmax", [*["cudnnOpTensor"] * 4, *_SUMS, *["cudnnOpTensor"] * 3, "cudnnSoftmaxBackward"]),
        ("none", ["cudnnScaleTensor", "cudnnActivationForward", "cudnnOpTensor", "cudnnReduceTensor"]),
    ],
)
def test_contiguous_float32_is_computed_in_place(
    fake: FakeCudnn, normalization: str, conversion: list[str]
) -> None:
    """But for the two steps that limit the logarithms of a softmax, and the last two of both."""
    case = LABELLED._replace(normalization=normalization, steps=(6, 6, 6))
    call(case)
    fake.calls.clear()
    call(case)
    limited = ["cudnnSoftmaxForward", "cudnnOpTensor"] * (normalization == "softmax")
    assert fake.names() == [*limited, "cudnnCTCLoss_v8", *conversion, *["cudnnOpTensor"] * 2]


@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("elsewhere", [(0,), (1,), (2,), (0, 1, 2)])
def test_misaligned_operands_are_copied(
    host: Host, elsewhere: tuple[int, ...], dtype: str, normalization: str
) -> None:
    """The fake rejects memory that is not 16-byte aligned."""
    case = BATCH._replace(dtype=dtype, normalization=normalization, steps=(4, 2, 2))  # the last is impossible
    values = case.logits
    arrays = values, np.zeros(3, values.dtype), np.zeros_like(values)
    for shifts in ([0, 0, 0], [int(n in elsewhere) for n in range(3)], [0, 0, 0]):
        logits, *outs = (ForeignArray(host, one) for one in map(shifted, arrays, shifts))
        assert [array.pointer % 16 != 0 for array in (logits, *outs)] == shifts
        check(call(case, logits=logits, out=tuple(outs)), case, 2e-3)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # of the fake
@pytest.mark.parametrize("second", [(2,), ()])  # without labels no alignment is left, and one gradient
def test_ctc_loss_takes_probabilities_of_zero(second: tuple[int, ...]) -> None:
    case = CTCCase(((1, 2), second), (9, 6), 9, 4, normalization="none")
    values = case.logits
    values[:, 0, 3] = values[4:7, :, 1] = values[3, :, 0] = 0
    expected = ct.reference.ctc_loss(values, *case.integers, normalization="none")
    got = call(case, logits=ct.asarray(values))
    np.testing.assert_allclose(got.gradient.numpy(), expected.gradient, atol=1e-6)
    np.testing.assert_allclose(got.loss.numpy(), expected.loss, rtol=1e-5)


@pytest.mark.parametrize("algo", ["deterministic", "non_deterministic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", FAR_CASES, ids=str)
def test_ctc_loss_equals_reference_when_probabilities_round_to_0_or_1(
    host: Host, case: FarCase, dtype: str, algo: str
) -> None:
    check_far(case, lambda array: ForeignArray(host, array), dtype, algo)


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in LOST_CASES), (LOST_CASES[-1], "float64")], ids=str
)
def test_ctc_loss_is_nan_when_all_alignments_are_out_of_range(host: Host, case: FarCase, dtype: str) -> None:
    check_far(case, lambda array: ForeignArray(host, array), dtype, lost=True)


def test_ctc_loss_of_float64_reaches_further(host: Host) -> None:
    for case in LOST_CASES[:-1]:
        check_far(case, lambda array: ForeignArray(host, array), "float64")


def test_ctc_loss_propagates_nan_of_logits() -> None:
    values = LABELLED.logits
    values[1, 0, 3] = np.nan
    got = call(LABELLED, logits=ct.asarray(values))
    assert np.isnan(got.loss.numpy()).tolist() == [True, False, False]
    assert np.isnan(got.gradient.numpy()[:4, 0]).any()


def test_ctc_loss_without_softmax_equals_reference_when_probabilities_are_1() -> None:
    """The other sequences have several alignments, and none that is certain."""
    case = CTCCase(((1, 2), (1,), (3,)), (2, 5, 4), 5, 4, normalization="none")
    values = case.logits
    values[:2, 0] = np.eye(4)[[1, 2]]
    values[:4, 2] = np.eye(4)[[3, 3, 0, 0]]
    expected = ct.reference.ctc_loss(values, *case.integers, normalization="none")
    got = call(case, logits=ct.asarray(values))
    np.testing.assert_allclose(got.gradient.numpy(), expected.gradient, atol=1e-6)
    np.testing.assert_allclose(got.loss.numpy(), expected.loss, atol=1e-6)


def test_labels_are_copied_once(host: Host) -> None:
    call()
    used = host.used()
    for _ in range(3):
        call()
    assert host.used() == used
    for n in range(3 * ops.MAX_COPIES):
        call(CTCCase(((1,) * (n % 3 + 1),) * 2, (9, 5 + n % 4), 9, 2, seed=n))
    here = context.current(streams.default_stream(0))
    assert len(here.plans[ops._COPIES]) <= ops.MAX_COPIES


def test_copies_of_labels_outlive_the_stream_that_they_were_first_used_on(host: Host) -> None:
    """Later streams neither wait for that stream nor use it."""
    first, second = streams.Stream(77, 0), streams.Stream(78, 0)
    call(LABELLED, logits=ct.asarray(LABELLED.logits), stream=first)
    ct.synchronize(first)  # and then it is destroyed
    logits = ct.asarray(LABELLED.logits, stream=second)
    host.log.clear()
    for stream in (second, second, None):
        call(LABELLED, logits=logits, stream=stream)
    context.current(streams.default_stream(0)).plans[ops._COPIES].clear()
    assert not [line for line in host.log if line[1] == 77]


def test_copies_of_labels_are_waited_for_once(host: Host) -> None:
    """And not on the default stream, whose order is enough."""
    stream = streams.Stream(77, 0)
    call(LABELLED)
    assert not [line for line in host.log if line[0] == "synchronize"]
    with host.captured(77), pytest.raises(NotInitializedError, match="not seen before on this stream"):
        call(LABELLED, stream=stream)
    for times in (3, 0):  # labels, their lengths and the steps
        logits = ct.asarray(LABELLED.logits)
        host.log.clear()
        call(LABELLED, logits=logits, stream=stream)
        assert [line for line in host.log if line[0] == "synchronize"] == [("synchronize", 1)] * times


def test_batches_share_what_is_prepared(fake: FakeCudnn) -> None:
    logits = ct.asarray(BATCH.logits)
    for n, labels in enumerate(([1, 2], [3], [2, 2, 2])):
        ct.ctc_loss(logits, [labels, labels, [1]], [len(labels)] * 2 + [1], [6, 6, 2 + n])
    assert fake.names().count("cudnnGetCTCLossWorkspaceSize_v8") == 1


# --- CUDA graphs ---


def test_captured_with_labels_of_the_host(host: Host) -> None:
    stream = streams.Stream(77, 0)
    case = BATCH._replace(labels=((1, 2), (), (3, 3)), steps=(4, 2, 2))  # the last is impossible
    call(case, stream=stream)
    pinned = testing.cache_sizes()["captured"].entries
    with host.captured(77):
        got = call(case, stream=stream)
        assert testing.cache_sizes()["captured"].entries == pinned + 5  # handle, workspace, three copies
        with pytest.raises(NotInitializedError, match=r"not seen before .* make the same call once"):
            call(case._replace(steps=(4, 3, 5)), stream=stream)
    check(got, case)


def test_captured_with_labels_on_the_device(host: Host) -> None:
    stream = streams.Stream(77, 0)
    on_device = dict(zip(NAMES, map(ct.asarray, LABELLED.integers), strict=True))
    call(LABELLED, **on_device, stream=stream)
    with host.captured(77):
        got = call(LABELLED, **on_device, stream=stream)
        counts = [ct.asarray(np.array([2, 0], dtype)) for dtype in ("int64", "int32")]
        for name, wrong, error, message in (
            ("label_lengths", counts[0], TypeError, "label_lengths on the device is int64"),
            ("label_lengths", counts[1], ValueError, "the batch has 3"),
            ("labels", LABELLED.labels, NotSupportedError, "pass all of them on the host"),
            ("normalization", "none", NotSupportedError, "pass all of them on the host"),
            ("algo", "non_deterministic", NotSupportedError, "host memory, which no CUDA graph can"),
        ):
            with pytest.raises(error, match=message):
                call(LABELLED, **on_device | {name: wrong}, stream=stream)
    check(got, LABELLED)


# --- failures ---


@pytest.mark.parametrize("name", ["cudnnGetCTCLossWorkspaceSize_v8", "cudnnCTCLoss_v8"])
def test_labels_on_the_host_are_the_fallback(fake: FakeCudnn, name: str) -> None:
    fake.fail[name] = 3000
    check(call())
    assert "cudnnCTCLoss" in fake.names()
    fake.fail["cudnnCTCLoss"] = 3000
    with pytest.raises(NotSupportedError, match=r"(?s)support this CTC loss \(deterministic\).*rejected"):
        call()


def test_the_gradient_may_not_lie_over_the_logits() -> None:
    logits = ct.asarray(BATCH.logits)
    with pytest.raises(ValueError, match="out overlaps"):
        call(logits=logits, out=logits)
